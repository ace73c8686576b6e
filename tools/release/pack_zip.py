#!/usr/bin/env python3
"""Packs a folder's content into a zip file whose bytes depend on the content alone. pack_zip.py FILE FOLDER

Times are SOURCE_DATE_EPOCH. make_wheel.py uses write_zip.
"""

import os
import sys
import time
import zipfile
from pathlib import Path


def write_zip(path: Path, files: dict[str, bytes], programs: tuple[str, ...] = ()) -> None:
    """Writes files, by their names in the archive; `programs` may be executed."""
    when = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]  # zip begins in 1980
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, when)
            entry.create_system = 3
            entry.external_attr = (0o100755 if name in programs else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name], compresslevel=9)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    top = Path(sys.argv[2])
    write_zip(Path(sys.argv[1]), {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()})
