"""The other parts of a layer: the causal convolution, with the arguments of causal-conv1d, and norms. Forward only.

On the CPU, a convolution without SiLU uses PyTorch's own operations.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

from pyquern._lib import InvalidError, UnsupportedError
from pyquern.torch import _operators

_MAX_TAPS = 8  # limit of the kernels; with a bias one less


def _uses_silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise UnsupportedError(f"activation: {activation!r}, expected None, 'silu' or 'swish'")
    return activation is not None


def _check_conv(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[1]:
        raise InvalidError(
            f"x, weight: shapes {tuple(x.shape)} and {tuple(weight.shape)}, expected (batch, dim, seqlen) and (dim, width)"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InvalidError(f"bias: shape {tuple(bias.shape)}, expected ({weight.shape[0]},)")


def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, initial: Tensor | None, activate: bool, final_states: bool
) -> tuple[Tensor, Tensor]:
    """y and, if requested, the last width - 1 inputs, both [batch, dim, ...], for inputs [batch, dim, seqlen]."""
    width = weight.shape[1]
    if activate or x.is_cuda:
        initial = None if initial is None else initial.to(x.dtype).transpose(1, 2)
        bias = None if bias is None else bias.float()
        y, final = _operators.causal_conv1d(x.transpose(1, 2), weight.float(), bias, initial, activate, final_states)
        return y.transpose(1, 2), final.transpose(1, 2) if final_states else final
    before = x.new_zeros((x.shape[0], x.shape[1], width - 1)) if initial is None else initial.to(x.dtype)
    padded = torch.cat((before, x), -1)
    bias = None if bias is None else bias.to(x.dtype)
    y = conv1d(padded, weight.to(x.dtype).unsqueeze(1), bias, groups=x.shape[1])
    return y, padded[..., padded.shape[2] - width + 1 :]


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise convolution over time: [batch, dim, seqlen] of the type of x, and the final states if requested.

    x: [batch, dim, seqlen]; a view of [batch, seqlen, dim] memory is not copied; weight: [dim, width]; bias: [dim]
    initial_states, final_states_out: [batch, dim, width - 1], the last inputs; final_states_out is written
    activation: None, "silu" or "swish"; seq_idx is not supported
    """
    if seq_idx is not None:
        raise UnsupportedError("seq_idx: packed sequences are not supported, expected None")
    _check_conv(x, weight, bias)
    if initial_states is not None and initial_states.shape != (x.shape[0], x.shape[1], weight.shape[1] - 1):
        raise InvalidError(
            f"initial_states: shape {tuple(initial_states.shape)}, expected {(x.shape[0], x.shape[1], weight.shape[1] - 1)}"
        )
    y, final = _conv(x, weight, bias, initial_states, _uses_silu(activation), return_final_states)
    if not return_final_states:
        return y
    if final_states_out is not None:
        final = final_states_out.copy_(final)
    return y, final


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """causal_conv1d_fn for the next tokens of sequences, with their last inputs in conv_state, which is updated in
    place.

    x: [batch, dim] or [batch, dim, seqlen]; conv_state: [batch, dim, state_len], state_len >= width - 1, newest input
    last; with conv_state_indices [batch] (no index twice) a pool of such states; cache_seqlens (circular states) is not
    supported
    """
    if cache_seqlens is not None:
        raise UnsupportedError("cache_seqlens: circular states are not supported, expected None")
    activate = _uses_silu(activation)
    tokens = x.unsqueeze(-1) if x.dim() == 2 else x
    _check_conv(tokens, weight, bias)
    width = weight.shape[1]
    batch = tokens.shape[0] if conv_state_indices is None else conv_state_indices.shape[0]
    if (
        conv_state.dim() != 3
        or conv_state.shape[1] != tokens.shape[1]
        or conv_state.shape[2] < width - 1
        or batch != tokens.shape[0]
        or (conv_state_indices is None and conv_state.shape[0] != batch)
    ):
        raise InvalidError(
            f"conv_state: shape {tuple(conv_state.shape)}, expected {tuple(tokens.shape[:2])} and at least {width - 1} inputs"
        )
    taps = conv_state.shape[2] + 1
    in_place = conv_state.dtype == x.dtype and taps <= _MAX_TAPS - (bias is not None)
    if in_place and tokens.shape[2] == 1 and (activate or x.is_cuda):
        bias = None if bias is None else bias.float()
        taps_weight = pad(weight.float(), (taps - width, 0)) if taps > width else weight.float()  # older inputs count 0
        y: Tensor = _operators.causal_conv1d_step(
            tokens[..., 0], conv_state.transpose(1, 2), taps_weight, bias, conv_state_indices, activate
        )
        return y.unsqueeze(-1) if x.dim() == 3 else y
    held = conv_state if conv_state_indices is None else conv_state[conv_state_indices]
    y, _ = _conv(tokens, weight, bias, held[..., held.shape[2] - width + 1 :], activate, False)
    newest = torch.cat((held, tokens.to(held.dtype)), -1)[..., -held.shape[2] :]
    if conv_state_indices is None:
        conv_state.copy_(newest)
    else:
        conv_state.index_copy_(0, conv_state_indices.long(), newest)
    return y if x.dim() == 3 else y.squeeze(-1)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, computed in f32, of the type of x."""
    return _operators.l2_norm(x, eps)  # type: ignore[no-any-return]


def _check_norm(x: Tensor, weight: Tensor, gate: Tensor | None = None) -> None:
    for name, tensor, shape in (("gate", gate, x.shape), ("weight", weight, x.shape[-1:])):
        if tensor is not None and tensor.shape != shape:
            raise InvalidError(f"{name}: shape {tuple(tensor.shape)}, expected {tuple(shape)}")


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x * weight / sqrt(mean(x^2) + eps) over the last dimension n, computed in f32, of the type of x [..., n]. weight:
    [n]"""
    _check_norm(x, weight)
    return _operators.rms_norm(x, weight.float(), eps)  # type: ignore[no-any-return]


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x * weight / sqrt(mean(x^2) + eps) * silu(gate) over the last dimension n, computed in f32, of the type of x.

    x, gate: [..., n]; weight: [n]
    """
    _check_norm(x, weight, gate)
    return _operators.gated_rms_norm(x, gate.to(x.dtype), weight.float(), eps)  # type: ignore[no-any-return]
