"""libquern through cffi: loads it, raises its errors as exceptions, and builds arguments.

The declarations are generated from the headers when the package is built (make_cdef.py). The environment variable
QN_PYQUERN_LIBRARY names a libquern.so to use instead of the package's.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pyquern._cdef import ffi


class Error(RuntimeError):
    """A call of the library failed. The text is the library's: the argument, the value found and the value expected."""


class InvalidError(Error, ValueError):
    """An argument is outside what the function accepts."""


class FormatError(Error, ValueError):
    """A file or a serialised structure violates its format."""


class UnsupportedError(Error, NotImplementedError):
    """Valid, but not implemented or not available here."""


class InputOutputError(Error, OSError):
    """The operating system reported an error."""


class OutOfMemoryError(Error, MemoryError):
    """An allocation failed, or its size overflows."""


class ContextError(Error):
    """The tokens do not fit in the context of a session."""


class CancelledError(Error):
    """The caller stopped the operation."""


class BusyError(Error):
    """The queue of a scheduler is full: try again later."""


class DeviceError(Error):
    """The driver of a GPU reported an error; often no later call on that GPU succeeds."""


def _open() -> Any:
    path = os.environ.get("QN_PYQUERN_LIBRARY") or str(Path(__file__).parent / "libquern.so")
    try:
        return ffi.dlopen(path)
    except OSError as error:
        raise ImportError(f"libquern cannot be loaded: {error}", path=path) from error


lib: Any = _open()

__version__: str = ffi.string(lib.qn_version()).decode()

_ERRORS: dict[int, type[Error]] = {
    lib.QN_ERR_INVALID: InvalidError,
    lib.QN_ERR_FORMAT: FormatError,
    lib.QN_ERR_UNSUPPORTED: UnsupportedError,
    lib.QN_ERR_IO: InputOutputError,
    lib.QN_ERR_MEMORY: OutOfMemoryError,
    lib.QN_ERR_CONTEXT: ContextError,
    lib.QN_ERR_CANCELLED: CancelledError,
    lib.QN_ERR_BUSY: BusyError,
    lib.QN_ERR_DEVICE: DeviceError,
}


def sized(name: str) -> Any:
    """A struct of the library that begins with its size, with the defaults of all members."""
    result, size = ffi.new(f"{name} *"), ffi.sizeof(name)
    if name == "qn_request_params":
        lib.qn_request_params_init(result, size)
    elif name == "qn_sampling":
        lib.qn_sampling_init(result, size)
    else:
        result.size = size
    return result


def error_of(status: int, text: bytes) -> Error:
    """The exception of a status other than QN_OK."""
    return _ERRORS.get(status, Error)(text.decode(errors="replace"))


def check(status: int) -> None:
    """Raises the exception of a status other than QN_OK. Call it on the thread of the failed call."""
    if status:
        raise error_of(status, ffi.string(lib.qn_error_text()))


def is_process(maker: int) -> bool:
    """Whether this is the process `maker`, the one that made an object with threads and locks."""
    return os.getpid() == maker


def check_process(maker: int, what: str) -> None:
    """Raises the library's own error before a function waits for a thread or lock of another process."""
    if not is_process(maker):
        raise InvalidError(
            f"{what} was made by process {maker}, and this is process {os.getpid()}: threads, locks and GPU contexts do not "
            'survive a fork. Make it in each process; with multiprocessing, by the start method "spawn"'
        )


# Views of absent arrays: no bias, no initial state, no cumulative lengths.
NO_VIEW: Any = ffi.new("qn_view *")[0]
NO_CUDA_VIEW: Any = ffi.new("qn_cuda_view *")[0]


def dtype_value(name: str) -> int:
    """The qn_dtype of a name such as "f32" or "ptq1_0"."""
    value: int | None = getattr(lib, f"QN_DTYPE_{name.upper()}", None)
    if value is None:
        raise InvalidError(f"dtype: {name!r}, expected the name of a data type of quern")
    return value


def bytes_of(dtype: int, count: int) -> int:
    """The size of an array of `count` elements, a multiple of the block of the type."""
    size = ffi.new("size_t *")
    check(lib.qn_view_bytes(dtype, count, size))
    return int(size[0])


def view(address: int, dtype: int, count: int) -> Any:
    """A qn_view of memory that must outlive it."""
    result = ffi.new("qn_view *")
    result.data, result.dtype, result.count = address, dtype, count
    return result[0]
