"""The Gated DeltaNet layers of transformers' Qwen3-Next and Qwen3.5 models with the operators of this package.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pyquern._lib import InvalidError, UnsupportedError
from pyquern.torch.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from pyquern.torch.layers import causal_conv1d_fn, causal_conv1d_update, gated_rms_norm


def _heads(x: Tensor, elements: int) -> Tensor:
    """[..., H * elements] as [..., H, elements]. Dynamo of PyTorch 2.11 does not follow unflatten under a default
    device."""
    return x.reshape(*x.shape[:-1], -1, elements)


def _joined_projections(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Qwen3-Next: the projections of a key head and its value heads are adjacent."""
    q, k, v, z, b, a = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x), layer.in_proj_ba(x))
    return torch.cat([part.flatten(2) for part in (q, k, v)], -1), z, b, a


def _separate_projections(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Qwen3.5"""
    z = _heads(layer.in_proj_z(x), layer.head_v_dim)
    return layer.in_proj_qkv(x), z, layer.in_proj_b(x), layer.in_proj_a(x)


# Classes of layers: q, k and v [B, T, channels of the convolution], z [B, T, HV, V], b and a [B, T, HV]
_PROJECTIONS: dict[str, Callable[[Any, Tensor], tuple[Tensor, ...]]] = {
    "Qwen3NextGatedDeltaNet": _joined_projections,
    "Qwen3_5GatedDeltaNet": _separate_projections,
    "Qwen3_5MoeGatedDeltaNet": _separate_projections,
}


# Caches of transformers: 5.21 and later have get_conv_state. Earlier ones hold the states in `layers`, since 5.14 in a
# dict for each kind, where update_conv_state joins earlier inputs with new ones. Before 5.4, Qwen3-Next's cache has two
# lists.


def _cached(cache: Any, index: int) -> tuple[Tensor | None, Tensor | None, bool]:
    """A layer's entries in a cache: inputs of the convolution, recurrent state, and whether all inputs are recorded."""
    if hasattr(cache, "get_conv_state"):
        recording = bool(cache.is_recording_past(index))
        return cache.get_conv_state(index, state_idx=0), cache.get_recurrent_state(index, state_idx=0), recording
    if not hasattr(cache, "layers"):
        return cache.conv_states[index], cache.recurrent_states[index], False
    layer = cache.layers[index]
    recording = bool(getattr(layer, "record_past", False))
    if not cache.has_previous_state(index):
        return None, None, recording
    conv_state, state = (
        held[0] if isinstance(held, dict) else held for held in (layer.conv_states, layer.recurrent_states)
    )
    return conv_state, state, recording


def _with_earlier(cache: Any, index: int, new: Tensor, conv_state: Tensor | None, width: int) -> Tensor:
    """Stores new inputs of the convolution [B, C, T] in a cache; returns them after the earlier ones."""
    if hasattr(cache, "layers") and isinstance(cache.layers[index].conv_states, dict):
        return cache.update_conv_state(new, index, conv_kernel_size=width)  # type: ignore[no-any-return]
    joined = new if conv_state is None else torch.cat([conv_state, new], -1)
    last = pad(joined, (width - joined.shape[-1], 0))
    if hasattr(cache, "layers"):
        cache.update_conv_state(last, index)
    else:
        cache.conv_states[index] = last
    return joined


def _forward(
    layer: Any, hidden_states: Tensor, cache_params: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor:
    """forward of the layers, with the arguments and the cache of transformers."""
    for name in ("cu_seq_lens_q", "seq_idx"):
        if kwargs.get(name) is not None:
            raise UnsupportedError(f"{name}: packed sequences are not supported, expected None")
    if attention_mask is not None:  # padding tokens must not change the state
        hidden_states = (hidden_states * attention_mask[:, :, None]).to(hidden_states.dtype)
    tokens = hidden_states.shape[1]
    qkv, z, b, a = _PROJECTIONS[type(layer).__name__](layer, hidden_states)
    conv_state, state, recording = None, None, False
    if cache_params is not None:
        conv_state, state, recording = _cached(cache_params, layer.layer_idx)

    qkv = qkv.transpose(1, 2)
    conv = (layer.conv1d.weight.squeeze(1), layer.conv1d.bias, layer.activation)
    if conv_state is not None and tokens == 1 and not recording:
        qkv = causal_conv1d_update(qkv, conv_state, *conv)
    else:
        if cache_params is not None:  # the earlier inputs come first
            qkv = _with_earlier(cache_params, layer.layer_idx, qkv, conv_state, layer.conv_kernel_size)
        y = causal_conv1d_fn(qkv, *conv[:2], activation=conv[2])
        assert isinstance(y, Tensor)
        qkv = y[:, :, -tokens:]
    q, k, v = qkv.transpose(1, 2).split([layer.key_dim, layer.key_dim, layer.value_dim], -1)

    rule: Any = chunk_gated_delta_rule if state is None or tokens > 1 else fused_recurrent_gated_delta_rule
    o, final = rule(
        _heads(q, layer.head_k_dim),
        _heads(k, layer.head_k_dim),
        _heads(v, layer.head_v_dim),
        g=a,
        beta=b,
        initial_state=state,
        output_final_state=cache_params is not None,
        use_qk_l2norm_in_kernel=True,
        use_gate_in_kernel=True,
        A_log=layer.A_log,
        dt_bias=layer.dt_bias,
        use_beta_sigmoid_in_kernel=True,
    )
    if cache_params is not None:
        if hasattr(cache_params, "layers"):
            cache_params.update_recurrent_state(final, layer.layer_idx)
        else:
            cache_params.recurrent_states[layer.layer_idx] = final
    normed = gated_rms_norm(o, z.reshape(o.shape), layer.norm.weight, layer.layer_norm_epsilon)
    return layer.out_proj(normed.flatten(2))  # type: ignore[no-any-return]


class Acceleration:
    """What accelerate() changed. undo() changes it back, and so does the end of a with statement."""

    def __init__(self, layers: list[torch.nn.Module]) -> None:
        self.layers = layers

    def undo(self) -> None:
        """Restores the forward of all layers. Further calls do nothing."""
        for layer in self.layers:
            del layer.forward
        self.layers = []

    def __enter__(self) -> Acceleration:  # noqa: PYI034 (typing.Self is of Python 3.11)
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()


def accelerate(model: torch.nn.Module) -> Acceleration:
    """Lets the Gated DeltaNet layers of a transformers model compute with quern, in place; weights stay as they are.

    The model is a Qwen3-Next, Qwen3.5 or Qwen3.5-MoE of transformers 5, or contains one. Forward only: call it under
    torch.no_grad(), as generate() does. With hooks of the library accelerate (device maps, offloading), call this
    before them.
    """
    layers = [module for module in model.modules() if type(module).__name__ in _PROJECTIONS]
    if not layers:
        raise InvalidError(f"{type(model).__name__}: no layer among {', '.join(_PROJECTIONS)}")
    for layer in layers:
        if "forward" in vars(layer):
            raise InvalidError(
                f"{type(layer).__name__}: its forward has been replaced before, expected that of the class"
            )
    for layer in layers:
        layer.forward = types.MethodType(_forward, layer)
    return Acceleration(layers)
