#!/usr/bin/env python3
"""Fills the templates of a folder for the release whose files are in another one. fill_templates.py TEMPLATES VERSION FILES URL

In a template NAME.in, @VERSION@ is the version, @URL@ the address of the folder that the files are published in, @SHA256:FILE@ the hash of
one of them, with @VERSION@ in its name, @SHA256:FILE:upper@ the same in capitals, and @SUMS@ the lines of sha256sum for all archives. NAME
is written to FILES. Templates of a folder are left out if one of them names a file which is not there: that system was not built.
"""

import hashlib
import re
import sys
from pathlib import Path

HASH = re.compile(r"@SHA256:([^@:]+)(:upper)?@")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fill(template: str, version: str, url: str, files: Path) -> str | None:
    """The text, or None if it names a file that is not there."""
    template = template.replace("@VERSION@", version).replace("@URL@", url)
    archives = sorted(files.glob(f"quern-{version}-*.tar.gz"))
    template = template.replace("@SUMS@", "\n".join(f"{sha256(path)}  {path.name}" for path in archives))
    names = {match[1] for match in HASH.finditer(template)}
    if not all((files / name).is_file() for name in names):
        return None
    hashes = {name: sha256(files / name) for name in names}
    filled = HASH.sub(lambda m: hashes[m[1]].upper() if m[2] else hashes[m[1]], template)
    left = re.search(r"@[A-Z][A-Z0-9:]*[^@\s]*@", filled)
    if left:
        raise ValueError(f"unknown {left[0]}")
    return filled


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    templates, version, files, url = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4].rstrip("/")
    texts = {path: fill(path.read_text(), version, url, files) for path in sorted(templates.rglob("*.in"))}
    incomplete = {path.parent for path, text in texts.items() if text is None}
    for folder in sorted(incomplete):
        print(f"{folder.name}: a system of it was not built", file=sys.stderr)
    for path, text in texts.items():
        if text is None or path.parent in incomplete:
            continue
        result = files / path.relative_to(templates).with_suffix("")
        result.parent.mkdir(parents=True, exist_ok=True)
        result.write_text(text)
        if text.startswith("#!"):
            result.chmod(0o755)


if __name__ == "__main__":
    main()
