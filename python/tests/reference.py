"""References in float64, plain and obvious, from the formulas of quern/kernels.h."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def to_bf16(x: Array) -> npt.NDArray[np.uint16]:
    """float32 to bf16, rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float64(x: Array) -> npt.NDArray[np.float64]:
    """Any float array, uint16 as bf16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def error(found: Array, expected: Array) -> float:
    """Norm of the difference over the norm of what was expected."""
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(to_float64(found) - expected)) / (norm or 1.0)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def spans(batch: int, tokens: int, cu_seqlens: Array | None) -> list[tuple[int, int]]:
    """First token and end of each sequence, in rows of the flattened batch."""
    if cu_seqlens is None:
        return [(i * tokens, (i + 1) * tokens) for i in range(batch)]
    return [(int(a), int(b)) for a, b in pairwise(cu_seqlens)]


def delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: float,
    initial: Array | None = None,
    normalize: bool = False,
    cu_seqlens: Array | None = None,
    tiled: bool = False,
) -> tuple[Array, Array]:
    """The recurrence token by token: o [B, T, Hv, V] and states [N, Hv, V, K]."""
    q, k, v, g, beta = map(to_float64, (q, k, v, g, beta))
    batch, tokens, k_heads, head_k = q.shape
    v_heads, head_v = v.shape[2:]
    if normalize:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    q, k = (x.reshape(-1, k_heads, head_k) for x in (q, k))
    o = np.zeros((batch * tokens, v_heads, head_v))
    sequences = spans(batch, tokens, cu_seqlens)
    states = np.zeros((len(sequences), v_heads, head_v, head_k)) if initial is None else to_float64(initial).copy()
    v, g, beta = v.reshape(-1, v_heads, head_v), g.reshape(-1, v_heads), beta.reshape(-1, v_heads)
    for i, (begin, end) in enumerate(sequences):
        for h in range(v_heads):
            state, key_head = states[i, h], h % k_heads if tiled else h * k_heads // v_heads
            for t in range(begin, end):
                state *= np.exp(g[t, h])
                change = beta[t, h] * (v[t, h] - state @ k[t, key_head])
                state += np.outer(change, k[t, key_head])
                o[t, h] = scale * state @ q[t, key_head]
    return o.reshape(batch, tokens, v_heads, head_v), states


def conv(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    initial: Array | None = None,
    cu_seqlens: Array | None = None,
    activation: bool = True,
) -> tuple[Array, Array]:
    """Causal depthwise convolution: y [B, T, C] and the last taps - 1 inputs of each sequence [N, taps - 1, C]."""
    x, weights = to_float64(x), to_float64(weights)
    batch, tokens, channels = x.shape
    taps = weights.shape[1]
    rows, y, finals = x.reshape(-1, channels), np.zeros((batch * tokens, channels)), []
    for i, (begin, end) in enumerate(spans(batch, tokens, cu_seqlens)):
        before = np.zeros((taps - 1, channels)) if initial is None else to_float64(initial)[i]
        padded = np.concatenate([before, rows[begin:end]])
        for t in range(end - begin):
            y[begin + t] = (padded[t : t + taps] * weights.T).sum(0) + (0 if bias is None else bias)
        finals.append(padded[len(padded) - taps + 1 :])
    return (silu(y) if activation else y).reshape(x.shape), np.stack(finals)


def attention(
    q: Array, keys: Array, values: Array, scale: float, positions: Array | None, window: int, sinks: Array | None
) -> Array:
    """q [n_tokens, n_heads, dim], keys and values [n_kv_heads, n_keys, dim]."""
    out = np.zeros(q.shape)
    rep = q.shape[1] // keys.shape[0]
    t = np.arange(keys.shape[1])
    for i in range(q.shape[0]):
        mask = (
            np.ones(len(t), bool)
            if positions is None
            else (t <= positions[i]) & ((t + window > positions[i]) | (window == 0))
        )
        for h in range(q.shape[1]):
            scores = np.where(mask, scale * keys[h // rep] @ q[i, h], -np.inf)
            if sinks is not None:
                scores = np.append(scores, sinks[h])
            weights = np.exp(scores - scores.max())
            weights = (weights / weights.sum())[: len(t)]
            out[i, h] = weights @ values[h // rep]
    return out
