"""The build backend of pyquern: scikit-build-core's, in a clone or an unpacked source tarball. The C library is built from the
folder above, so a copy of this folder alone is refused, by a line that says what to do.

SPDX-License-Identifier: Apache-2.0
"""

import sys
from pathlib import Path

_source = Path(__file__).resolve().parent.parent
if not (_source / "CMakeLists.txt").is_file():
    sys.exit("pyquern: this folder is a part of quern's source, which is not around it: run `pip install ./python` in a clone or an unpacked tarball")

# pip installs scikit-build-core to another folder each time. Where it finds that noted, it throws compiled objects away.
(_source / "build" / "python" / ".skbuild-info.json").unlink(missing_ok=True)

from scikit_build_core.build import *  # noqa: E402, F403
