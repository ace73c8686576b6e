"""Common parts of all operators: registration, and calls of libquern with tensors of the CPU or of a CUDA device.

A CPU tensor goes to qn_*, a CUDA tensor to qn_cuda_*, on the current stream of its device and with workspaces of
PyTorch's allocator.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyquern._cdef import ffi
from pyquern._lib import NO_CUDA_VIEW, NO_VIEW, UnsupportedError, check, lib

FLOATS = {
    torch.float32: lib.QN_DTYPE_F32,
    torch.float16: lib.QN_DTYPE_F16,
    torch.bfloat16: lib.QN_DTYPE_BF16,
}
DTYPES = {**FLOATS, torch.int32: lib.QN_DTYPE_I32, torch.int64: lib.QN_DTYPE_I64}
# The CPU kernels take only u32: negative values are too large for them.
_HOST_DTYPES = {**FLOATS, torch.int32: lib.QN_DTYPE_U32}
ALIGNMENT = 16  # of addresses and row distances in device memory, in bytes

# ---- Registration ----

_library = torch.library.Library("pyquern", "DEF")


def define(name: str, arguments: str, fake: Callable[..., Any], implementation: Callable[..., Any]) -> Any:
    """Registers an operator for the CPU and CUDA and returns it."""
    _library.define(f"{name}{arguments}", tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        _library.impl(name, implementation, device)
    torch.library.register_fake(f"pyquern::{name}", fake, lib=_library)
    operator = getattr(torch.ops.pyquern, name).default

    def refuse_grad(keys: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            raise RuntimeError(
                f"pyquern.torch.{name} has no backward: call it under torch.no_grad(), or with tensors that do not require grad"
            )
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *args)

    _library.impl(name, refuse_grad, "Autograd", with_keyset=True)
    return operator


# ---- Devices ----


def device_of(x: Tensor) -> int:
    """The index of the CUDA device of a tensor, -1 for the CPU."""
    return x.get_device()


@functools.cache
def cuda_kernels(device: int) -> Any:
    """The handle of the kernels of a device, open as long as the process lives."""
    handle = ffi.new("qn_cuda_kernels **")
    check(lib.qn_cuda_kernels_open(handle, device))
    return handle[0]


class _Thread(threading.local):
    """The devices whose context is current to a thread."""

    def __init__(self) -> None:
        self.devices: set[int] = set()


_thread = _Thread()


def launch(device: int, function: Any, *arguments: Any) -> None:
    """Calls a function of quern/cuda.h on the current stream of a device."""
    if torch.cuda.current_device() != device:
        with torch.cuda.device(device):
            launch(device, function, *arguments)
        return
    if device not in _thread.devices:
        # The driver needs a current context. The runtime creates it with a thread's first call that needs one.
        torch.cuda.Event().record(torch.cuda.current_stream(device))
        _thread.devices.add(device)
    check(function(cuda_kernels(device), *arguments, torch._C._cuda_getCurrentRawStream(device)))


# ---- Arguments ----


def row_distance(x: Tensor, lead: int) -> int:
    """The distance of rows of x in elements, if rows are contiguous and equally spaced; else 0. The first `lead`
    dimensions count rows."""
    shape, strides = x.shape, x.stride()
    n = 1
    for size, stride in zip(reversed(shape[lead:]), reversed(strides[lead:])):
        if size != 1 and stride != n:
            return 0
        n *= size
    distance = step = 0
    for size, stride in zip(reversed(shape[:lead]), reversed(strides[:lead])):
        if size == 1:
            continue
        if distance == 0:
            distance = step = stride
        if stride != step or distance < n:
            return 0
        step *= size
    return distance or n


class Call:
    """A call of libquern with views of its tensors, which live as long as it. Inputs that the kernels cannot read are
    copied."""

    __slots__ = ("device", "kept")

    def __init__(self, like: Tensor) -> None:
        self.device = device_of(like)
        self.kept: list[Tensor] = []

    def view(self, x: Tensor | None, lead: int | None = None, alignment: int = ALIGNMENT) -> Any:
        """A view of a tensor, or an all-zero one. With `lead`, a tensor on the GPU may have gaps between rows."""
        if x is None:
            return NO_VIEW if self.device < 0 else NO_CUDA_VIEW
        dtype = (_HOST_DTYPES if self.device < 0 else DTYPES).get(x.dtype)
        if dtype is None:
            raise UnsupportedError(f"a tensor of {x.dtype}, expected one of {', '.join(map(str, FLOATS))}")
        if self.device < 0:
            x = x.contiguous()
            self.kept.append(x)
            return ffi.new("qn_view *", (x.data_ptr(), dtype, x.numel()))[0]
        distance = 0 if lead is None or not x.numel() else row_distance(x, lead)
        if distance * x.element_size() % alignment:
            distance = 0
        if distance == 0:
            x = x.contiguous()
        if x.data_ptr() % alignment:
            x, distance = x.clone(memory_format=torch.contiguous_format), 0
        self.kept.append(x)
        count = x.numel()
        if distance:
            assert lead is not None
            rows = x.shape[:lead].numel()
            count = (rows - 1) * distance + count // rows
        return ffi.new("qn_cuda_view *", (x.data_ptr(), dtype, count, distance))[0]

    def new(self, type_name: str) -> Any:
        """A struct by its name without the prefix, for the device."""
        return ffi.new(f"{'qn_' if self.device < 0 else 'qn_cuda_'}{type_name} *")

    def workspace(self, name: str, *arguments: Any) -> tuple[int, int]:
        """The workspace that qn_cuda_{name}_workspace requires, and its size."""
        size = ffi.new("size_t *")
        check(getattr(lib, f"qn_cuda_{name}_workspace")(cuda_kernels(self.device), *arguments, size))
        memory = torch.empty(size[0], dtype=torch.uint8, device=self.kept[0].device)
        self.kept.append(memory)
        return memory.data_ptr(), size[0]

    def run(self, name: str, *arguments: Any) -> None:
        """Calls qn_{name} or qn_cuda_{name}."""
        if self.device < 0:
            check(getattr(lib, f"qn_{name}")(*arguments))
        else:
            launch(self.device, getattr(lib, f"qn_cuda_{name}"), *arguments)


# ---- Sequences ----


def host_lengths(cu_seqlens: Tensor) -> Tensor:
    """Cumulative lengths as the CPU kernels read them. Negative values become ones that they refuse."""
    return cu_seqlens.clamp(-1, 2**31 - 1).to(torch.int32).contiguous()
