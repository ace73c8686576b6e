"""The operators torch.ops.pyquern.*: schemas, implementations for the CPU and CUDA, what they return for fake tensors.

The functions of this package that users call check and prepare arguments with ordinary PyTorch code, which torch.compile can
fuse with its neighbours, and leave to an operator what the library computes. Operators are functional except where the schema
says otherwise, return tensors that alias no argument, and take their workspaces from PyTorch's allocator.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyquern._cdef import ffi
from pyquern._lib import NO_VIEW, InvalidError, UnsupportedError, bytes_of, check, dtype_value, lib, view

DTYPES = {
    torch.float32: lib.QN_DTYPE_F32,
    torch.float16: lib.QN_DTYPE_F16,
    torch.bfloat16: lib.QN_DTYPE_BF16,
    torch.int32: lib.QN_DTYPE_I32,
    torch.int64: lib.QN_DTYPE_I64,
    torch.uint32: lib.QN_DTYPE_U32,
}


def tensor_view(tensor: Tensor | None) -> Any:
    """A qn_view of a contiguous tensor of the CPU, which must outlive it; an all-zero one for None."""
    if tensor is None:
        return NO_VIEW
    return view(tensor.data_ptr(), DTYPES[tensor.dtype], tensor.numel())


def host_lengths(cu_seqlens: Tensor) -> Tensor:
    """Cumulative lengths as the CPU kernels read them. A negative value becomes one that they refuse."""
    return cu_seqlens.clamp(-1, 2**31 - 1).to(torch.int32).contiguous().view(torch.uint32)


def _n_rows(x: Tensor) -> int:
    return x.numel() // x.shape[-1] if x.shape[-1] else 0


# ---- Registration ----

_library = torch.library.Library("pyquern", "DEF")


def _define(name: str, arguments: str, fake: Callable[..., Any], **implementations: Callable[..., Any]) -> Any:
    """Registers an operator and returns it. Implementations are named cpu and cuda."""
    _library.define(f"{name}{arguments}", tags=(torch.Tag.pt2_compliant_tag,))
    for device, implementation in implementations.items():
        _library.impl(name, implementation, device.upper())
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


# ---- Gated DeltaNet: what the kernels have ----


class _Sizes(NamedTuple):
    """The sizes of heads that a kernel has: multiples of a unit, up to a largest."""

    k_unit: int
    k_max: int
    v_unit: int
    v_max: int

    def padded(self, head_k: int, head_v: int) -> tuple[int, int] | None:
        """The sizes to pad to. Zeros at the end of q, k, v and the state change no other element of any result."""
        k, v = -(-head_k // self.k_unit) * self.k_unit, -(-head_v // self.v_unit) * self.v_unit
        return (k, v) if k <= self.k_max and v <= self.v_max else None


_CHUNK, _STEP = "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"

# The kernels to try, in this order, for a device, an operator and a type: the type that is computed in, and the sizes of heads.
_ANY_SIZES = _Sizes(16, 256, 16, 256)
_TENSOR_CORES = (torch.bfloat16, _Sizes(128, 128, 64, 256))
_F32 = (torch.float32, _ANY_SIZES)
_KERNELS: dict[tuple[str, str, torch.dtype], tuple[tuple[torch.dtype, _Sizes], ...]] = {
    ("cpu", _CHUNK, torch.float32): (_F32,),
    ("cpu", _CHUNK, torch.float16): ((torch.float16, _ANY_SIZES),),
    ("cpu", _CHUNK, torch.bfloat16): ((torch.bfloat16, _ANY_SIZES),),
    ("cpu", _STEP, torch.float32): (_F32,),
    ("cpu", _STEP, torch.float16): ((torch.float16, _ANY_SIZES),),
    ("cpu", _STEP, torch.bfloat16): ((torch.bfloat16, _ANY_SIZES),),
    ("cuda", _CHUNK, torch.float32): (_F32,),
    ("cuda", _CHUNK, torch.float16): (_TENSOR_CORES, _F32),
    ("cuda", _CHUNK, torch.bfloat16): (_TENSOR_CORES, _F32),
    ("cuda", _STEP, torch.float32): (_F32,),
    ("cuda", _STEP, torch.float16): (_F32,),
    ("cuda", _STEP, torch.bfloat16): (_TENSOR_CORES, _F32),
}


@functools.cache
def _kernel(device: str, name: str, dtype: torch.dtype, head_k: int, head_v: int) -> tuple[torch.dtype, int, int]:
    """The type that a call is computed in, and the sizes to which heads are padded."""
    for compute, sizes in _KERNELS.get((device, name, dtype), ()):
        padded = sizes.padded(head_k, head_v)
        if padded:
            return compute, *padded
    raise UnsupportedError(f"{name}: no kernel for {dtype} on {device} with heads of {head_k} and {head_v} elements")


def _check_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    v_first: bool,
) -> int:
    """Checks shapes, types and devices; returns the number of sequences."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InvalidError(
                f"{name}: {tensor.dim()} dimensions, expected 4: batch, tokens, heads, elements of a head"
            )
        if tensor.dtype != q.dtype:
            raise InvalidError(f"{name}: {tensor.dtype}, expected {q.dtype} as q")
    batch, tokens, heads, head_k = q.shape
    v_heads, head_v = v.shape[2:]
    if heads == 0 or v_heads % heads:
        raise InvalidError(f"v: {v_heads} heads, expected a multiple of the {heads} heads of q")
    n = batch
    if cu_seqlens is not None:
        if batch != 1:
            raise InvalidError(f"cu_seqlens: a batch of {batch}, expected 1 with all sequences concatenated")
        if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise InvalidError(
                f"cu_seqlens: {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, expected int32 or int64 (N + 1,)"
            )
        n = cu_seqlens.shape[0] - 1
    state = (n, v_heads, head_v, head_k) if v_first else (n, v_heads, head_k, head_v)
    for name, part, shape in (
        ("k", k, q.shape),
        ("v", v, (batch, tokens, v_heads, head_v)),
        ("g", g, (batch, tokens, v_heads)),
        ("beta", beta, (batch, tokens, v_heads)),
        ("initial_state", initial, state),
        ("cu_seqlens", cu_seqlens, (n + 1,)),
    ):
        if part is None:
            continue
        if part.shape != shape:
            raise InvalidError(f"{name}: shape {tuple(part.shape)}, expected {tuple(shape)}")
        if part.device != q.device:
            raise InvalidError(f"{name}: a tensor on {part.device}, expected {q.device} as q")
    for name, part in (("g", g), ("beta", beta)):
        if part.dtype != torch.float32:
            raise InvalidError(f"{name}: {part.dtype}, expected {torch.float32}")
    return n


# ---- Gated DeltaNet: calls ----


@functools.cache
def _cuda_kernels(device: int) -> Any:
    """The handle of the kernels of a device, open as long as the process lives."""
    handle = ffi.new("qn_cuda_kernels **")
    check(lib.qn_cuda_kernels_open(handle, device))
    return handle[0]


class _Call:
    """The arguments of a call of the library, of which only the addresses change from one call to the next.

    distances: elements from a row of each tensor to the next; only views of device memory have them
    """

    __slots__ = ("function", "shape", "views", "workspace_bytes")

    def __init__(
        self,
        name: str,
        device: int,
        tensors: list[Tensor | None],
        distances: list[int],
        cu_seqlens: Tensor | None,
        scale: float,
        normalize: bool,
        max_tokens: int,
    ) -> None:
        prefix = "qn_" if device < 0 else "qn_cuda_"
        q, v = tensors[0], tensors[2]
        assert q is not None and v is not None
        self.function = getattr(lib, prefix + ("gdn_chunk" if name == _CHUNK else "gdn_step"))
        self.views = [ffi.new(f"{prefix}view *")[0] for _ in tensors]
        for to, tensor, distance in zip(self.views, tensors, distances):
            if tensor is not None:
                to.dtype = DTYPES[tensor.dtype]
                to.count = tensor.numel()
                if device >= 0 and distance:
                    rows = tensor.shape[0] * tensor.shape[1]
                    to.stride, to.count = distance, (rows - 1) * distance + tensor.numel() // rows
        shape = self.shape = ffi.new(f"{prefix}gdn_shape *")
        shape.batch, shape.tokens, shape.k_heads, shape.head_k = q.shape
        shape.v_heads, shape.head_v = v.shape[2:]
        shape.mapping, shape.scale, shape.normalize = lib.QN_GDN_GROUPED, scale, normalize
        if cu_seqlens is not None:
            shape.n_sequences = cu_seqlens.numel() - 1
            shape.cu_seqlens.dtype, shape.cu_seqlens.count = DTYPES[cu_seqlens.dtype], cu_seqlens.numel()
        self.workspace_bytes = -1  # the function has none
        if device >= 0:
            shape.max_tokens = max_tokens
        if device >= 0 and name == _CHUNK:
            size = ffi.new("size_t *")
            check(lib.qn_cuda_gdn_chunk_workspace(_cuda_kernels(device), shape, DTYPES[q.dtype], size))
            self.workspace_bytes = int(size[0])

    def run(self, device: int, tensors: list[Tensor | None], cu_seqlens: Tensor | None) -> None:
        for to, tensor in zip(self.views, tensors):
            if tensor is not None:
                to.data = tensor.data_ptr()
        if cu_seqlens is not None:
            self.shape.cu_seqlens.data = cu_seqlens.data_ptr()
        if device < 0:
            check(self.function(self.shape, *self.views))
            return
        stream = torch.cuda.current_stream(device).cuda_stream
        if self.workspace_bytes < 0:
            check(self.function(_cuda_kernels(device), self.shape, *self.views, stream))
            return
        workspace = torch.empty(self.workspace_bytes, dtype=torch.uint8, device=f"cuda:{device}")
        check(
            self.function(
                _cuda_kernels(device), self.shape, *self.views, workspace.data_ptr(), self.workspace_bytes, stream
            )
        )


class _Thread(threading.local):
    """What a thread keeps: calls by what does not change in them, and the devices whose context is current to it."""

    def __init__(self) -> None:
        self.calls: dict[Any, _Call] = {}
        self.devices: set[int] = set()


_thread = _Thread()
_ALIGNMENT = 16  # of addresses and of the distance of rows in device memory, in bytes
_MAX_CALLS = 256


def _row_distance(x: Tensor) -> int:
    """Elements from a token of x [B, T, ...] to the next, if tokens are without gaps and equally far apart; else 0."""
    shape, strides = x.shape, x.stride()
    n = 1
    for size, stride in zip(shape[:1:-1], strides[:1:-1]):
        if size != 1 and stride != n:
            return 0
        n *= size
    batch, tokens = shape[:2]
    distance = strides[1] if tokens > 1 else strides[0] if batch > 1 else n
    return distance if distance >= n and (batch == 1 or strides[0] == tokens * distance or tokens == 1) else 0


def _rows(x: Tensor, dtype: torch.dtype, head: int, on_device: bool) -> tuple[Tensor, int]:
    """Rows of tokens x [B, T, H, D] as the kernels read them, and their distance."""
    if x.dtype != dtype:
        x = x.to(dtype)
    if x.shape[3] != head:
        x = pad(x, (0, head - x.shape[3]))
    distance = _row_distance(x)
    if distance == 0 or (not on_device and not x.is_contiguous()):
        x = x.contiguous()
        distance = x.shape[2] * head
    if on_device and (x.data_ptr() % _ALIGNMENT or distance * x.element_size() % _ALIGNMENT):
        x = x.clone(memory_format=torch.contiguous_format)
        distance = x.shape[2] * head
    return x, distance


def _aligned(x: Tensor) -> Tensor:
    """A contiguous tensor at an address that quern/cuda.h accepts."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % _ALIGNMENT else x


def _state(initial: Tensor | None, v_first: bool, like: Tensor, shape: tuple[int, ...], writeable: bool) -> Tensor:
    """A state [N, Hv, V, K] f32, padded, that holds the initial one, or zeros; a copy if it is to be written."""
    if initial is None:
        return like.new_zeros(shape, dtype=torch.float32)
    state = initial if v_first else initial.transpose(-1, -2)
    padded = state.shape != shape
    if not writeable and not padded and state.dtype == torch.float32:
        return _aligned(state)
    result = (like.new_zeros if padded else like.new_empty)(shape, dtype=torch.float32)
    result[:, :, : state.shape[2], : state.shape[3]].copy_(state)
    return result


def _gated_delta_rule(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    normalize: bool,
    output_final_state: bool,
    v_first: bool,
    max_tokens: int,
) -> tuple[Tensor, Tensor]:
    n = _check_gated_delta_rule(q, k, v, g, beta, initial, cu_seqlens, v_first)
    on_device = q.is_cuda
    device = q.device.index if on_device else -1
    head_k, head_v, value_type = q.shape[3], v.shape[3], v.dtype
    dtype, padded_k, padded_v = _kernel(q.device.type, name, q.dtype, head_k, head_v)
    q, q_distance = _rows(q, dtype, padded_k, on_device)
    k, k_distance = _rows(k, dtype, padded_k, on_device)
    v, v_distance = _rows(v, dtype, padded_v, on_device)
    g_distance = _row_distance(g)
    if g_distance == 0 or g_distance != _row_distance(beta) or not on_device:
        g, beta, g_distance = g.contiguous(), beta.contiguous(), g.shape[2]

    # Tokens outside of all sequences are not written.
    o = torch.empty_like(v, memory_format=torch.contiguous_format) if cu_seqlens is None else torch.zeros_like(v)
    shape = (n, v.shape[2], padded_v, padded_k)
    state: Tensor | None = None
    if initial is not None or name == _STEP or not q.numel():
        state = _state(initial, v_first, q, shape, writeable=name == _STEP or not q.numel())
    final = state
    if name == _CHUNK and q.numel():
        final = q.new_empty(shape, dtype=torch.float32) if output_final_state else None
    if q.numel() and n:
        tensors = [q, k, v, g, beta, state, *([final] if name == _CHUNK else []), o]
        distances = [q_distance, k_distance, v_distance, g_distance, g_distance] + [0] * (len(tensors) - 5)
        if cu_seqlens is not None:
            cu_seqlens = _aligned(cu_seqlens) if on_device else host_lengths(cu_seqlens)
        key = (
            name,
            device,
            dtype,
            q.shape,
            v.shape,
            q_distance,
            k_distance,
            v_distance,
            g_distance,
            state is None,
            final is None,
            scale,
            normalize,
            None if cu_seqlens is None else (n, cu_seqlens.dtype, max_tokens),
        )
        with torch.cuda.device(device) if on_device else contextlib.nullcontext():
            if on_device and device not in _thread.devices:
                # The driver needs a current context. The runtime makes it with the first call of a thread that needs one.
                torch.cuda.Event().record(torch.cuda.current_stream(device))
                _thread.devices.add(device)
            call = _thread.calls.get(key)
            if call is None:
                if len(_thread.calls) >= _MAX_CALLS:
                    _thread.calls.clear()
                call = _thread.calls[key] = _Call(
                    name, device, tensors, distances, cu_seqlens, scale, normalize, max_tokens
                )
            call.run(device, tensors, cu_seqlens)

    if padded_v != head_v:
        o = o[..., :head_v].contiguous()
    if dtype != value_type:
        o = o.to(value_type)
    if not output_final_state or final is None:
        return o, q.new_empty(0, dtype=torch.float32)
    final = final[:, :, :head_v, :head_k]
    return o, (final if v_first else final.transpose(-1, -2)).contiguous()


def _gated_delta_rule_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial: Tensor | None,
    cu_seqlens: Tensor | None,
    scale: float,
    normalize: bool,
    output_final_state: bool,
    v_first: bool,
    max_tokens: int,
) -> tuple[Tensor, Tensor]:
    n = _check_gated_delta_rule(q, k, v, g, beta, initial, cu_seqlens, v_first)
    head_k, head_v = q.shape[3], v.shape[3]
    state = (n, v.shape[2], head_v, head_k) if v_first else (n, v.shape[2], head_k, head_v)
    final = q.new_empty(state if output_final_state else (0,), dtype=torch.float32)
    return v.new_empty(v.shape), final


_GDN_ARGUMENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state, Tensor? cu_seqlens, float scale,"
    " bool normalize, bool output_final_state, bool state_v_first, int max_tokens) -> (Tensor o, Tensor final_state)"
)
# q, k [B, T, Hk, K] and v, o [B, T, Hv, V] of one type; g, beta [B, T, Hv] f32; cu_seqlens [N + 1] i32 or i64; states
# [N, Hv, K, V], or [N, Hv, V, K] with state_v_first; final_state has no elements where it is not asked for; max_tokens bounds the
# tokens of a sequence, for speed alone, 0: unknown.
chunk_gated_delta_rule, fused_recurrent_gated_delta_rule = (
    _define(
        name,
        _GDN_ARGUMENTS,
        _gated_delta_rule_fake,
        cpu=functools.partial(_gated_delta_rule, name),
        cuda=functools.partial(_gated_delta_rule, name),
    )
    for name in (_CHUNK, _STEP)
)


# ---- Convolution and norms: the CPU ----


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, output_final_state: bool
) -> tuple[Tensor, Tensor]:
    batch, tokens, channels = x.shape
    x, weight = x.contiguous(), weight.contiguous()
    shape = ffi.new("qn_conv_shape *")
    shape.batch, shape.tokens, shape.channels, shape.taps = batch, tokens, channels, weight.shape[1]
    bias = None if bias is None else bias.contiguous()
    initial = None if initial is None else initial.contiguous()
    y = torch.empty_like(x)
    final = x.new_empty((batch, weight.shape[1] - 1, channels) if output_final_state else (0,))
    final_view = tensor_view(final if output_final_state else None)
    check(
        lib.qn_conv_scan(
            shape,
            tensor_view(x),
            tensor_view(weight),
            tensor_view(bias),
            tensor_view(initial),
            final_view,
            tensor_view(y),
        )
    )
    return y, final


def _conv_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, output_final_state: bool
) -> tuple[Tensor, Tensor]:
    final = (x.shape[0], weight.shape[1] - 1, x.shape[2]) if output_final_state else (0,)
    return x.new_empty(x.shape), x.new_empty(final)


# x, y [B, T, C] and states [B, taps - 1, C] of one type; weight [C, taps], bias [C] f32. SiLU is applied.
causal_conv1d = _define(
    "causal_conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, bool output_final_state) -> (Tensor y, Tensor final_state)",
    _conv_fake,
    cpu=_conv,
)


def _conv_step(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    batch, channels = x.shape
    x, weight = x.contiguous(), weight.contiguous()
    shape = ffi.new("qn_conv_shape *")
    shape.batch, shape.tokens, shape.channels, shape.taps = batch, 1, channels, weight.shape[1]
    bias = None if bias is None else bias.contiguous()
    held = state.contiguous()
    y = torch.empty_like(x)
    check(
        lib.qn_conv_step(
            shape, tensor_view(x), tensor_view(weight), tensor_view(bias), tensor_view(held), tensor_view(y)
        )
    )
    if held is not state:
        state.copy_(held)
    return y


# One token of each sequence: x, y [B, C], state [B, taps - 1, C] of one type, updated in place.
causal_conv1d_step = _define(
    "causal_conv1d_step",
    "(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias) -> Tensor",
    lambda x, state, weight, bias: x.new_empty(x.shape),
    cpu=_conv_step,
)


def _l2_norm(x: Tensor, eps: float) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    check(lib.qn_l2_norm(tensor_view(x), _n_rows(x), x.shape[-1], eps, tensor_view(out)))
    return out


l2_norm = _define("l2_norm", "(Tensor x, float eps) -> Tensor", lambda x, eps: x.new_empty(x.shape), cpu=_l2_norm)


def _gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    x, gate, weight = x.contiguous(), gate.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    views = (tensor_view(x), tensor_view(gate), tensor_view(weight))
    check(lib.qn_gated_rms_norm(*views, _n_rows(x), x.shape[-1], eps, tensor_view(out)))
    return out


# x, gate [..., n] of one type, weight [n] f32
gated_rms_norm = _define(
    "gated_rms_norm",
    "(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor",
    lambda x, gate, weight, eps: x.new_empty(x.shape),
    cpu=_gated_rms_norm,
)


# ---- Matmul with quantised weights ----


def _quantized_matmul(x: Tensor, weight: Tensor, dtype: str, signs: Tensor | None, block: int) -> Tensor:
    n_rows, n_cols = weight.shape[0], x.shape[-1]
    acts = x.to(torch.float32, copy=block > 0).contiguous()
    if block:
        order = lib.QN_HADAMARD_SIGN_FIRST
        check(lib.qn_hadamard(tensor_view(acts), tensor_view(signs), _n_rows(acts), n_cols, block, order))
    out = acts.new_empty((*x.shape[:-1], n_rows))
    weight = weight.contiguous()
    if weight.numel() != bytes_of(dtype_value(dtype), n_rows * n_cols):
        raise InvalidError(
            f"weight: shape {tuple(weight.shape)}, expected {n_rows} rows of {n_cols} elements of {dtype}"
        )
    weights = view(weight.data_ptr(), dtype_value(dtype), n_rows * n_cols)
    check(lib.qn_matmul(weights, n_rows, n_cols, tensor_view(acts), _n_rows(acts), tensor_view(out)))
    return out.to(x.dtype)


def _quantized_matmul_cuda(x: Tensor, weight: Tensor, dtype: str, signs: Tensor | None, block: int) -> Tensor:
    """The place of the GPU's kernels, which quern/cuda.h does not have yet."""
    raise UnsupportedError(f"quantized_matmul: no kernel for {dtype} weights on {x.device}")


# x [..., n_cols], weight [n_rows, bytes of n_cols elements] uint8, the name of their type -> [..., n_rows] of the type of x. With a
# block above 0, x is rotated first, with signs [n_cols] f32 or none.
quantized_matmul = _define(
    "quantized_matmul",
    "(Tensor x, Tensor weight, str dtype, Tensor? signs, int block) -> Tensor",
    lambda x, weight, dtype, signs, block: x.new_empty((*x.shape[:-1], weight.shape[0])),
    cpu=_quantized_matmul,
    cuda=_quantized_matmul_cuda,
)
