"""The CPU kernels for numpy arrays. quern/kernels.h has the mathematics and the limits of each function.

uint16 arrays hold bf16, uint8 arrays blocks of a quantised type. "D" below is one of float32, float16 and bf16, the
same for all arrays of a call that are marked with it. Inputs are copied if they are not contiguous; arrays that are
written in place must be contiguous. Errors are the exceptions of pyquern. The library runs without the GIL, so threads
can call it in parallel.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pyquern._cdef import ffi
from pyquern._lib import NO_VIEW, InvalidError, bytes_of, check, dtype_value, lib, view

__all__ = [
    "AuraCache",
    "AuraCodec",
    "conv_scan",
    "conv_step",
    "decode",
    "encode",
    "gated_rms_norm",
    "gdn_chunk",
    "gdn_step",
    "hadamard",
    "l2_norm",
    "matmul",
    "rms_norm",
    "swiglu",
]

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_DTYPES = {
    np.dtype(np.float32): lib.QN_DTYPE_F32,
    np.dtype(np.float16): lib.QN_DTYPE_F16,
    np.dtype(np.uint16): lib.QN_DTYPE_BF16,
    np.dtype(np.uint32): lib.QN_DTYPE_U32,
}

_MAPPINGS = {"grouped": lib.QN_GDN_GROUPED, "tiled": lib.QN_GDN_TILED}


def _in(name: str, array: npt.ArrayLike, shape: Shape | None = None) -> Array:
    """An input as a contiguous array of the given shape."""
    result = np.ascontiguousarray(array)
    if result.dtype not in _DTYPES:
        raise InvalidError(f"{name}: dtype {result.dtype}, expected float32, float16, uint16 (bf16) or uint32")
    if shape is not None and result.shape != shape:
        raise InvalidError(f"{name}: shape {result.shape}, expected {shape}")
    return result


def _in_place(name: str, array: Array, shape: Shape) -> Array:
    """An array that the library writes: checks its shape, and that it is contiguous and writeable."""
    if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.writeable:
        raise InvalidError(f"{name}: expected a contiguous, writeable numpy array, since it is written in place")
    return _in(name, array, shape)


def _view(array: Array | None) -> Any:
    if array is None:
        return NO_VIEW
    return view(array.ctypes.data, _DTYPES[array.dtype], array.size)


def _integers(name: str, array: npt.ArrayLike) -> Array:
    """Positions or cumulative lengths, of any integer type, as uint32."""
    result = np.asarray(array)
    if result.ndim != 1 or (result.size and not np.issubdtype(result.dtype, np.integer)):
        raise InvalidError(f"{name}: {result.dtype} of shape {result.shape}, expected integers in one dimension")
    if result.size and (int(result.min()) < 0 or int(result.max()) >= 2**32):
        raise InvalidError(f"{name}: values from {result.min()} to {result.max()}, expected 0 to 2^32 - 1")
    return np.ascontiguousarray(result, np.uint32)


def _rows(name: str, array: Array) -> tuple[int, int]:
    if array.ndim == 0:
        raise InvalidError(f"{name}: a number, expected an array of at least one dimension")
    n = array.shape[-1]
    return (array.size // n if n else 0), n


# ---- Weight types, matmul, norms ----


def decode(data: Array, dtype: str, count: int) -> npt.NDArray[np.float32]:
    """Weights of a type ("q1_0", "f16", ...) as float32 [count].

    data: the bytes of `count` elements, as stored in a GGUF file
    """
    blocks = np.ascontiguousarray(data)
    value = dtype_value(dtype)
    if blocks.nbytes != bytes_of(value, count):
        raise InvalidError(
            f"data: {blocks.nbytes} bytes, expected {bytes_of(value, count)} for {count} elements of {dtype}"
        )
    out = np.empty(count, np.float32)
    check(lib.qn_decode(view(blocks.ctypes.data, value, count), _view(out)))
    return out


def encode(x: npt.ArrayLike, dtype: str) -> npt.NDArray[np.uint8]:
    """float32 [..., n] as blocks of a weight type: uint8 [..., bytes of n elements]."""
    values = _in("x", x)
    n_rows, n = _rows("x", values)
    value = dtype_value(dtype)
    out = np.empty((*values.shape[:-1], bytes_of(value, n)), np.uint8)
    check(lib.qn_encode(_view(values), view(out.ctypes.data, value, n_rows * n)))
    return out


def matmul(weights: Array, dtype: str, acts: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """acts * weights^T: float32 [..., n_rows].

    weights: [n_rows, bytes of n_cols elements] uint8 blocks of the type, or any array of those bytes; acts: [...,
    n_cols] float32
    """
    x = _in("acts", acts)
    n_tokens, n_cols = _rows("acts", x)
    blocks = np.ascontiguousarray(weights)
    value = dtype_value(dtype)
    row = bytes_of(value, n_cols)
    if row == 0 or blocks.nbytes % row:
        raise InvalidError(
            f"weights: {blocks.nbytes} bytes, expected a multiple of {row}, a row of {n_cols} elements of {dtype}"
        )
    n_rows = blocks.nbytes // row
    out = np.empty((*x.shape[:-1], n_rows), np.float32)
    check(
        lib.qn_matmul(view(blocks.ctypes.data, value, n_rows * n_cols), n_rows, n_cols, _view(x), n_tokens, _view(out))
    )
    return out


def rms_norm(x: npt.ArrayLike, weight: npt.ArrayLike, eps: float = 1e-6) -> Array:
    """x * weight / sqrt(mean(x^2) + eps) of each row: x [..., n] float32, weight [n] float32."""
    rows = _in("x", x)
    n_rows, n = _rows("x", rows)
    w = _in("weight", weight, (n,))
    out = np.empty_like(rows)
    check(lib.qn_rms_norm(_view(rows), _view(w), n_rows, n, eps, _view(out)))
    return out


def gated_rms_norm(x: npt.ArrayLike, gate: npt.ArrayLike, weight: npt.ArrayLike, eps: float = 1e-6) -> Array:
    """rms_norm of each row, times silu(gate): x and gate [..., n] D, weight [n] float32."""
    rows = _in("x", x)
    n_rows, n = _rows("x", rows)
    z, w = _in("gate", gate, rows.shape), _in("weight", weight, (n,))
    out = np.empty_like(rows)
    check(lib.qn_gated_rms_norm(_view(rows), _view(z), _view(w), n_rows, n, eps, _view(out)))
    return out


def l2_norm(x: npt.ArrayLike, eps: float = 1e-6) -> Array:
    """x / sqrt(sum(x^2) + eps) of each row: x [..., n] D."""
    rows = _in("x", x)
    n_rows, n = _rows("x", rows)
    out = np.empty_like(rows)
    check(lib.qn_l2_norm(_view(rows), n_rows, n, eps, _view(out)))
    return out


def swiglu(gate: npt.ArrayLike, up: npt.ArrayLike) -> Array:
    """silu(gate) * up, elementwise, float32."""
    g = _in("gate", gate)
    u = _in("up", up, g.shape)
    out = np.empty_like(g)
    check(lib.qn_swiglu(_view(g), _view(u), _view(out)))
    return out


def hadamard(
    x: npt.ArrayLike,
    block: int,
    signs: npt.ArrayLike | None = None,
    order: Literal["sign_first", "sign_last"] = "sign_first",
) -> Array:
    """The normalised Walsh-Hadamard transform of blocks of each row, with signs before or after it.

    x: [..., width] float32; signs: [width] float32, each 1 or -1
    """
    if order not in ("sign_first", "sign_last"):
        raise InvalidError(f"order: {order!r}, expected 'sign_first' or 'sign_last'")
    out = np.array(_in("x", x))
    n_rows, width = _rows("x", out)
    s = None if signs is None else _in("signs", signs, (width,))
    value = lib.QN_HADAMARD_SIGN_FIRST if order == "sign_first" else lib.QN_HADAMARD_SIGN_LAST
    check(lib.qn_hadamard(_view(out), _view(s), n_rows, width, block, value))
    return out


# ---- Gated DeltaNet ----


def _sequences(shape: Any, batch: int, tokens: int, lengths: Array | None) -> int:
    """Sets the fields that define the sequences. Returns their number."""
    shape.batch, shape.tokens = batch, tokens
    if lengths is None:
        return batch
    if lengths.size < 2:
        raise InvalidError(f"cu_seqlens: {lengths.size} values, expected at least 2")
    shape.n_sequences, shape.cu_seqlens = lengths.size - 1, _view(lengths)
    return int(lengths.size - 1)


class _Gdn:
    """The common arguments of gdn_chunk and gdn_step, checked."""

    def __init__(
        self,
        q: npt.ArrayLike,
        k: npt.ArrayLike,
        v: npt.ArrayLike,
        g: npt.ArrayLike,
        beta: npt.ArrayLike,
        scale: float | None,
        normalize: bool,
        cu_seqlens: npt.ArrayLike | None,
        mapping: str,
    ) -> None:
        if mapping not in _MAPPINGS:
            raise InvalidError(f"mapping: {mapping!r}, expected 'grouped' or 'tiled'")
        self.q, self.v = _in("q", q), _in("v", v)
        for name, array in (("q", self.q), ("v", self.v)):
            if array.ndim != 4:
                raise InvalidError(
                    f"{name}: {array.ndim} dimensions, expected 4: batch, tokens, heads, elements of a head"
                )
        batch, tokens, k_heads, head_k = self.q.shape
        v_heads, head_v = self.v.shape[2:]
        self.k = _in("k", k, self.q.shape)
        self.v = _in("v", self.v, (batch, tokens, v_heads, head_v))
        self.g = _in("g", g, (batch, tokens, v_heads))
        self.beta = _in("beta", beta, (batch, tokens, v_heads))
        self.lengths = None if cu_seqlens is None else _integers("cu_seqlens", cu_seqlens)
        self.shape = ffi.new("qn_gdn_shape *")
        n = _sequences(self.shape, batch, tokens, self.lengths)
        self.shape.k_heads, self.shape.v_heads, self.shape.head_k, self.shape.head_v = k_heads, v_heads, head_k, head_v
        self.shape.mapping = _MAPPINGS[mapping]
        self.shape.scale = head_k**-0.5 if scale is None else scale
        self.shape.normalize = normalize
        self.state_shape = (n, v_heads, head_v, head_k)
        # The library does not write tokens outside of all sequences.
        self.o = np.empty_like(self.v) if self.lengths is None else np.zeros_like(self.v)

    def views(self) -> tuple[Any, ...]:
        return tuple(_view(array) for array in (self.q, self.k, self.v, self.g, self.beta))


def gdn_chunk(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike,
    beta: npt.ArrayLike,
    *,
    scale: float | None = None,
    normalize: bool = False,
    initial_state: npt.ArrayLike | None = None,
    output_final_state: bool = False,
    cu_seqlens: npt.ArrayLike | None = None,
    mapping: Literal["grouped", "tiled"] = "grouped",
) -> tuple[Array, npt.NDArray[np.float32] | None]:
    """The gated delta rule in chunks of 64 tokens, for prefill: o [B, T, Hv, V] D, and the final state if requested.

    q, k: [B, T, Hk, K] D; v: [B, T, Hv, V] D; g (log decay, <= 0), beta: [B, T, Hv] float32; scale: K^-1/2 if None;
    normalize: l2-normalise q and k first; states: [N, Hv, V, K] float32; cu_seqlens: [N + 1] integers, with B = 1;
    mapping: the key head of value head h is h * Hk // Hv (grouped) or h % Hk (tiled)
    """
    call = _Gdn(q, k, v, g, beta, scale, normalize, cu_seqlens, mapping)
    initial = None if initial_state is None else _in("initial_state", initial_state, call.state_shape)
    final = np.empty(call.state_shape, np.float32) if output_final_state else None
    check(lib.qn_gdn_chunk(call.shape, *call.views(), _view(initial), _view(final), _view(call.o)))
    return call.o, final


def gdn_step(
    q: npt.ArrayLike,
    k: npt.ArrayLike,
    v: npt.ArrayLike,
    g: npt.ArrayLike,
    beta: npt.ArrayLike,
    state: npt.NDArray[np.float32],
    *,
    scale: float | None = None,
    normalize: bool = False,
    cu_seqlens: npt.ArrayLike | None = None,
    mapping: Literal["grouped", "tiled"] = "grouped",
) -> Array:
    """The gated delta rule token by token, for decode: o [B, T, Hv, V] D. Arguments as for gdn_chunk.

    state: [N, Hv, V, K] float32, updated in place
    """
    call = _Gdn(q, k, v, g, beta, scale, normalize, cu_seqlens, mapping)
    _in_place("state", state, call.state_shape)
    check(lib.qn_gdn_step(call.shape, *call.views(), _view(state), _view(call.o)))
    return call.o


def _conv(weights: Array, channels: int) -> Any:
    if weights.ndim != 2 or weights.shape[0] != channels:
        raise InvalidError(f"weights: shape {weights.shape}, expected ({channels}, taps)")
    shape = ffi.new("qn_conv_shape *")
    shape.channels, shape.taps = weights.shape
    return shape


def conv_scan(
    x: npt.ArrayLike,
    weights: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    initial_state: npt.ArrayLike | None = None,
    output_final_state: bool = False,
    cu_seqlens: npt.ArrayLike | None = None,
) -> tuple[Array, Array | None]:
    """Causal depthwise convolution over time, then SiLU: y [B, T, C] D, and the last inputs if requested.

    x: [B, T, C] D; weights: [C, taps] float32, the last tap multiplies the current token; bias: [C] float32;
    states: [N, taps - 1, C] D, oldest first; cu_seqlens: [N + 1] integers, with B = 1
    """
    rows, w = _in("x", x), _in("weights", weights)
    if rows.ndim != 3:
        raise InvalidError(f"x: {rows.ndim} dimensions, expected 3: batch, tokens, channels")
    batch, tokens, channels = rows.shape
    b = None if bias is None else _in("bias", bias, (channels,))
    shape = _conv(w, channels)
    lengths = None if cu_seqlens is None else _integers("cu_seqlens", cu_seqlens)
    n = _sequences(shape, batch, tokens, lengths)
    state_shape = (n, w.shape[1] - 1, channels)
    initial = None if initial_state is None else _in("initial_state", initial_state, state_shape)
    final = np.empty(state_shape, rows.dtype) if output_final_state else None
    y = np.empty_like(rows) if lengths is None else np.zeros_like(rows)
    check(lib.qn_conv_scan(shape, _view(rows), _view(w), _view(b), _view(initial), _view(final), _view(y)))
    return y, final


def conv_step(x: npt.ArrayLike, weights: npt.ArrayLike, bias: npt.ArrayLike | None, state: Array) -> Array:
    """conv_scan for one token of each sequence: x [B, C] D, y [B, C] D.

    state: [B, taps - 1, C] D, updated in place
    """
    rows, w = _in("x", x), _in("weights", weights)
    if rows.ndim != 2:
        raise InvalidError(f"x: {rows.ndim} dimensions, expected 2: batch, channels")
    batch, channels = rows.shape
    b = None if bias is None else _in("bias", bias, (channels,))
    shape = _conv(w, channels)
    shape.batch, shape.tokens = batch, 1
    _in_place("state", state, (batch, w.shape[1] - 1, channels))
    y = np.empty_like(rows)
    check(lib.qn_conv_step(shape, _view(rows), _view(w), _view(b), _view(state), _view(y)))
    return y


# ---- AURA ----


class AuraCodec:
    """A codec for AURA: `bits` for each element of rows of `dim` elements."""

    def __init__(self, dim: int, bits: int, seed: int = 0) -> None:
        handle = ffi.new("qn_aura_codec **")
        check(lib.qn_aura_codec_create(handle, dim, bits, seed))
        self.handle: Any = ffi.gc(handle[0], lib.qn_aura_codec_free)
        self.dim, self.bits = dim, bits
        self.words = int(lib.qn_aura_words(self.handle))

    def tables(self) -> tuple[Array, Array, Array]:
        """rotation [dim, dim], boundaries [2^bits - 1], codebook [2^bits], all float32."""
        n = 2**self.bits
        tables = tuple(np.empty(shape, np.float32) for shape in ((self.dim, self.dim), (n - 1,), (n,)))
        check(lib.qn_aura_codec_tables(self.handle, *map(_view, tables)))
        return tables[0], tables[1], tables[2]

    def encode(self, rows: npt.ArrayLike) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """Rows [..., dim] D as codes [..., words] uint32 and scales [...] float32."""
        x = _in("rows", rows)
        self._check_width("rows", x, self.dim)
        codes = np.empty((*x.shape[:-1], self.words), np.uint32)
        scales = np.empty(x.shape[:-1], np.float32)
        check(lib.qn_aura_encode(self.handle, _view(x), scales.size, _view(codes), _view(scales)))
        return codes, scales

    def decode(
        self,
        codes: npt.ArrayLike,
        scales: npt.ArrayLike,
        *,
        rotate_back: bool = True,
        dtype: npt.DTypeLike = np.float32,
    ) -> Array:
        """Rows [..., dim] of a dtype (uint16: bf16), in their original basis or, without rotate_back, in the rotated
        one."""
        c = _in("codes", codes)
        self._check_width("codes", c, self.words)
        s = _in("scales", scales, c.shape[:-1])
        rows = np.empty((*c.shape[:-1], self.dim), dtype)
        _in("dtype", rows)
        check(lib.qn_aura_decode(self.handle, _view(c), _view(s), s.size, rotate_back, _view(rows)))
        return rows

    @staticmethod
    def _check_width(name: str, array: Array, width: int) -> None:
        if array.ndim == 0 or array.shape[-1] != width:
            raise InvalidError(f"{name}: shape {array.shape}, expected (..., {width})")


class AuraCache:
    """A KV cache of AURA codes for one layer, and attention over it.

    Arrays: key_codes, value_codes [n_kv_heads, capacity, words] uint32; key_scales, value_scales [n_kv_heads, capacity]
    float32.
    """

    def __init__(self, key_codec: AuraCodec, value_codec: AuraCodec, n_kv_heads: int, capacity: int) -> None:
        self.key_codec, self.value_codec = key_codec, value_codec
        self.key_codes = np.zeros((n_kv_heads, capacity, key_codec.words), np.uint32)
        self.value_codes = np.zeros((n_kv_heads, capacity, value_codec.words), np.uint32)
        self.key_scales = np.zeros((n_kv_heads, capacity), np.float32)
        self.value_scales = np.zeros((n_kv_heads, capacity), np.float32)

    def _cache(self, n_keys: int) -> Any:
        cache = ffi.new("qn_aura_cache *")
        cache.key_codec, cache.value_codec = self.key_codec.handle, self.value_codec.handle
        for name in ("key_codes", "value_codes", "key_scales", "value_scales"):
            setattr(cache, name, _view(getattr(self, name)))
        cache.n_kv_heads, cache.capacity = self.key_scales.shape
        cache.n_keys = n_keys
        return cache

    def store(self, keys: npt.ArrayLike, values: npt.ArrayLike, positions: npt.ArrayLike) -> None:
        """Encode keys and values [n_tokens, n_kv_heads, dim] D and store them at positions [n_tokens]."""
        at = _integers("positions", positions)
        shape = (at.size, self.key_scales.shape[0], self.key_codec.dim)
        k, v = _in("keys", keys, shape), _in("values", values, shape)
        check(lib.qn_aura_store(self._cache(0), _view(k), _view(v), _view(at), at.size))

    def attention(
        self,
        queries: npt.ArrayLike,
        n_keys: int,
        *,
        positions: npt.ArrayLike | None = None,
        scale: float | None = None,
        window: int = 0,
        sinks: npt.ArrayLike | None = None,
    ) -> Array:
        """Attention of queries [n_tokens, n_heads, dim] D to the first n_keys positions: [n_tokens, n_heads, dim] D.

        positions: [n_tokens], a query attends to positions 0 to its own; None: to all; scale: dim^-1/2 if None;
        window: sliding window, 0: none; sinks: [n_heads] float32 attention sinks
        """
        x = _in("queries", queries)
        if x.ndim != 3 or x.shape[2] != self.key_codec.dim:
            raise InvalidError(f"queries: shape {x.shape}, expected (n_tokens, n_heads, {self.key_codec.dim})")
        if positions is None and window:
            raise InvalidError(f"window: {window} without positions")
        n_tokens, n_heads, dim = x.shape
        at = None if positions is None else _integers("positions", positions)
        if at is not None and at.size != n_tokens:
            raise InvalidError(f"positions: {at.size}, expected {n_tokens}")
        s = None if sinks is None else _in("sinks", sinks, (n_heads,))
        call = ffi.new("qn_aura_queries *")
        call.queries, call.n_tokens, call.n_heads = _view(x), n_tokens, n_heads
        call.scale = dim**-0.5 if scale is None else scale
        call.causal, call.window = at is not None, window
        call.positions, call.sinks = _view(at), _view(s)
        out = np.empty_like(x)
        check(lib.qn_aura_attention(self._cache(n_keys), call, _view(out)))
        return out
