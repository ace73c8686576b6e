"""The operators around the delta rule: convolution, norms, matmul with quantised weights.

The public functions of this package check and prepare arguments with ordinary PyTorch code, which torch.compile can
fuse with its neighbours, and call an operator for the library's computation. Operators are functional except where the
schema says otherwise, return tensors that alias no argument, and take their workspaces from PyTorch's allocator.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pyquern._cdef import ffi
from pyquern._lib import InvalidError, UnsupportedError, bytes_of, check, dtype_value, lib, view
from pyquern.torch._library import Call, define, device_of, launch

# ---- Convolution ----


def _conv_shape(call: Call, x: Tensor, weight: Tensor, tokens: int, silu: bool) -> Any:
    shape = call.new("conv_shape")
    shape.batch, shape.tokens, shape.channels, shape.taps = x.shape[0], tokens, x.shape[-1], weight.shape[1]
    if call.device >= 0:
        shape.linear = not silu
    elif not silu:
        raise UnsupportedError("silu: a convolution without it is not among the kernels of the CPU")
    return shape


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, output_final_state: bool
) -> tuple[Tensor, Tensor]:
    y, final = _conv_fake(x, weight, bias, initial, silu, output_final_state)
    call = Call(x)
    call.run(
        "conv_scan",
        _conv_shape(call, x, weight, x.shape[1], silu),
        call.view(x, 2, 1),
        call.view(weight),
        call.view(bias),
        call.view(initial),
        call.view(final if output_final_state else None),
        call.view(y),
    )
    return y, final


def _conv_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, silu: bool, output_final_state: bool
) -> tuple[Tensor, Tensor]:
    final = (x.shape[0], weight.shape[1] - 1, x.shape[2]) if output_final_state else (0,)
    return x.new_empty(x.shape), x.new_empty(final)


# x, y [B, T, C] and states [B, taps - 1, C] of one type; weight [C, taps], bias [C] f32.
causal_conv1d = define(
    "causal_conv1d",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, bool silu, bool output_final_state)"
    " -> (Tensor y, Tensor final_state)",
    _conv_fake,
    _conv,
)


def _conv_step(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, indices: Tensor | None, silu: bool
) -> Tensor:
    call = Call(x)
    y = x.new_empty(x.shape)
    shape = _conv_shape(call, x, weight, 1, silu)
    held = state
    if not state.is_contiguous() or (indices is not None and call.device < 0):
        held = (state if indices is None else state[indices]).contiguous()
    elif indices is not None:
        shape.state_indices = call.view(indices.int(), alignment=1)
    call.run(
        "conv_step",
        shape,
        call.view(x, 1, 1),
        call.view(weight),
        call.view(bias),
        call.view(held, alignment=1),
        call.view(y),
    )
    if held is not state:
        if indices is None:
            state.copy_(held)
        else:
            state.index_copy_(0, indices.long(), held)
    return y


# One token of each sequence: x, y [B, C], state [S, taps - 1, C] of one type, updated in place; indices [B] of states,
# no index twice; None: state i belongs to sequence i.
causal_conv1d_step = define(
    "causal_conv1d_step",
    "(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, Tensor? indices, bool silu) -> Tensor",
    lambda x, state, weight, bias, indices, silu: x.new_empty(x.shape),
    _conv_step,
)

# ---- Norms ----


def _norm(name: str, x: Tensor, *arguments: Any) -> Tensor:
    """The operator of a norm: x, then the other rows and the weights as tensors, then eps."""
    out = x.new_empty(x.shape)
    call = Call(x)
    *tensors, eps = arguments
    n = x.shape[-1]
    lead = x.dim() - 1
    views = [call.view(x, lead, 1), *(call.view(t, t.dim() - 1 if t.dim() > 1 else None, 1) for t in tensors)]
    call.run(name, *views, x.numel() // n if n else 0, n, eps, call.view(out))
    return out


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if device_of(x) < 0:  # the CPU's is f32 only
        return _norm("rms_norm", x.float(), weight, eps).to(x.dtype)
    return _norm("rms_norm", x, weight, eps)


# x, gate [..., n] of one type, weight [n] f32
l2_norm, rms_norm, gated_rms_norm = (
    define(
        name,
        f"(Tensor x{arguments}, float eps) -> Tensor",
        lambda x, *others: x.new_empty(x.shape),
        _rms_norm if name == "rms_norm" else functools.partial(_norm, name),
    )
    for name, arguments in (
        ("l2_norm", ""),
        ("rms_norm", ", Tensor weight"),
        ("gated_rms_norm", ", Tensor gate, Tensor weight"),
    )
)

# ---- Matmul with quantised weights ----


def _rotated(x: Tensor, signs: Tensor | None, block: int) -> Tensor:
    """H (S x) of the rows of x, in f32."""
    out = x.to(torch.float32, copy=True).contiguous()
    call = Call(out)
    n = out.shape[-1]
    signs = None if signs is None else signs.float()
    call.run(
        "hadamard", call.view(out), call.view(signs), out.numel() // n if n else 0, n, block, lib.QN_HADAMARD_SIGN_FIRST
    )
    return out


def _packed_weights(packed: Tensor | None, dtype: str, n_rows: int, n_cols: int) -> Any:
    weights = ffi.new("qn_cuda_matmul_weights *")
    weights.dtype, weights.n_cols, weights.n_matrices, weights.n_rows[0] = dtype_value(dtype), n_cols, 1, n_rows
    if packed is not None:
        weights.packed, weights.bytes = packed.data_ptr(), packed.numel()
    return weights


def pack(weight: Tensor, dtype: str, n_cols: int) -> Tensor:
    """Packs weights [n_rows, bytes of a row] uint8 on a GPU for its kernels: uint8, one dimension."""
    n_rows, weight = weight.shape[0], weight.contiguous()
    size = ffi.new("size_t *")
    check(lib.qn_cuda_matmul_packed_bytes(_packed_weights(None, dtype, n_rows, n_cols), size))
    packed = torch.empty(size[0], dtype=torch.uint8, device=weight.device)
    rows = ffi.new("qn_cuda_view *", (weight.data_ptr(), dtype_value(dtype), n_rows * n_cols, 0))[0]
    weights = _packed_weights(packed, dtype, n_rows, n_cols)
    launch(device_of(weight), lib.qn_cuda_matmul_pack, weights, 0, rows)
    return packed


def _quantized_matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    signs: Tensor | None,
    dtype: str,
    n_rows: int,
    block: int,
) -> Tensor:
    n_cols = x.shape[-1]
    n_tokens = x.numel() // n_cols if n_cols else 0
    acts = _rotated(x, signs, block) if block else x
    call = Call(x)
    if call.device < 0:
        acts, weight = acts.float(), weight.contiguous()
        if weight.numel() != bytes_of(dtype_value(dtype), n_rows * n_cols):
            raise InvalidError(
                f"weight: shape {tuple(weight.shape)}, expected {n_rows} rows of {n_cols} elements of {dtype}"
            )
        weights = view(weight.data_ptr(), dtype_value(dtype), n_rows * n_cols)
        out = acts.new_empty((*x.shape[:-1], n_rows))
        call.run("matmul", weights, n_rows, n_cols, call.view(acts), n_tokens, call.view(out))
        return (out if bias is None else out + bias).to(x.dtype)
    y = x.new_empty((*x.shape[:-1], n_rows))
    if bias is not None:
        y.copy_(bias)
    weights = _packed_weights(weight, dtype, n_rows, n_cols)
    inputs, outputs = ffi.new("qn_cuda_matmul_acts *"), ffi.new("qn_cuda_matmul_out *")
    inputs.op, inputs.n_tokens, inputs.x = lib.QN_CUDA_MATMUL_X, n_tokens, call.view(acts, x.dim() - 1, 1)
    outputs.y, outputs.accumulate = call.view(y), bias is not None
    call.run("matmul", weights, inputs, outputs, *call.workspace("matmul", weights, inputs))
    return y


# x [..., n_cols] -> [..., n_rows] of the type of x. weight: [n_rows, bytes of n_cols elements of dtype] uint8, on a GPU
# the result of pack(); bias [n_rows]. With a block above 0, x is rotated first, with signs [n_cols] f32 or none.
quantized_matmul = define(
    "quantized_matmul",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? signs, str dtype, int n_rows, int block) -> Tensor",
    lambda x, weight, bias, signs, dtype, n_rows, block: x.new_empty((*x.shape[:-1], n_rows)),
    _quantized_matmul,
)
