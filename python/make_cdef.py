"""Writes the module _cdef.py, by which cffi calls the functions that the public headers declare.

    python make_cdef.py OUTPUT HEADER...

SPDX-License-Identifier: Apache-2.0
"""

import re
import sys
from pathlib import Path

from cffi import FFI

# Addresses are integers in Python, as ctypes, numpy and PyTorch have them: a cast for each would cost more than the call.
ADDRESSES = (
    (r"\bvoid \*(data|workspace|packed)\b", r"uintptr_t \1"),
    (r"\btypedef void \*qn_stream;", "typedef uintptr_t qn_stream;"),
)


def declarations(header: str) -> str:
    """The text of a header without what cffi does not read: comments, directives, extern "C", attributes."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^#(?:.*\\\n)*.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\bQN_API\b", "", text)
    for pattern, replacement in ADDRESSES:
        text = re.sub(pattern, replacement, text)
    return text


def main() -> None:
    output, *headers = map(Path, sys.argv[1:])
    ffi = FFI()
    ffi.cdef("\n".join(declarations(header.read_text()) for header in headers))
    ffi.set_source("pyquern._cdef", None)
    ffi.emit_python_code(str(output))


if __name__ == "__main__":
    main()
