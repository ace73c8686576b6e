"""The kernels of quern from Python.

pyquern.kernels   the CPU kernels over numpy arrays
pyquern.gguf      tensors of GGUF files
pyquern.torch     operators for PyTorch, on the CPU and on NVIDIA GPUs

SPDX-License-Identifier: Apache-2.0
"""

from pyquern._lib import (
    CancelledError,
    ContextError,
    Error,
    FormatError,
    InputOutputError,
    InvalidError,
    OutOfMemoryError,
    UnsupportedError,
    __version__,
)

__all__ = [
    "CancelledError",
    "ContextError",
    "Error",
    "FormatError",
    "InputOutputError",
    "InvalidError",
    "OutOfMemoryError",
    "UnsupportedError",
    "__version__",
]
