"""AURA codes of tensors, and a KV cache of them. Forward only.

A codec is defined by the number of elements of a row, the bits of a code and the seed of the rotation
(quern/kernels.h). Codes are packed in i32 tensors, 32 bits in each element; scales are f32.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pyquern._cdef import ffi
from pyquern._lib import InvalidError, check, lib, view
from pyquern.torch._library import Call, cuda_kernels, define

# ---- Codecs ----


@functools.cache
def _codec(dim: int, bits: int, seed: int) -> Any:
    """A codec, which lives as long as the process."""
    handle = ffi.new("qn_aura_codec **")
    check(lib.qn_aura_codec_create(handle, dim, bits, seed))
    return handle[0]


@functools.cache
def _tables(dim: int, bits: int, seed: int, device: torch.device) -> Tensor:
    """The tables of a codec in device memory."""
    codec = _codec(dim, bits, seed)
    tables = torch.empty(lib.qn_cuda_aura_table_size(codec))
    check(lib.qn_cuda_aura_tables(codec, view(tables.data_ptr(), lib.QN_DTYPE_F32, tables.numel())))
    moved = tables.to(device)
    torch.cuda.current_stream(device).synchronize()  # other streams read them too
    return moved


def _words(dim: int, bits: int) -> int:
    return (dim * bits + 31) // 32


def _codec_of(call: Call, like: Tensor, dim: int, bits: int, seed: int) -> Any:
    """A codec as the functions of the device expect it."""
    codec = _codec(dim, bits, seed)
    if call.device < 0:
        return codec
    result = ffi.new("qn_cuda_aura_codec *")
    result.codec, result.tables = codec, call.view(_tables(dim, bits, seed, like.device))
    return result


def _cache(call: Call, arrays: tuple[Tensor, ...], codecs: tuple[int, ...], dim: int, n_keys: int) -> Any:
    """qn_aura_cache of key_codes, value_codes, key_scales and value_scales; codecs: key_bits, value_bits, seed."""
    cache = call.new("aura_cache")
    key_bits, value_bits, seed = codecs
    for name, bits in (("key_codec", key_bits), ("value_codec", value_bits)):
        codec = _codec_of(call, arrays[0], dim, bits, seed)
        setattr(cache, name, codec if call.device < 0 else codec[0])
    for name, array in zip(("key_codes", "value_codes", "key_scales", "value_scales"), arrays):
        if not array.is_contiguous():
            raise InvalidError(f"{name}: not contiguous, expected what AuraCache makes")
        setattr(cache, name, call.view(array))
    cache.n_kv_heads, cache.capacity = arrays[2].shape
    cache.n_keys = n_keys
    return cache


# ---- Operators ----


def _encode(rows: Tensor, bits: int, seed: int) -> tuple[Tensor, Tensor]:
    codes, scales = _encode_fake(rows, bits, seed)
    call = Call(rows)
    codec = _codec_of(call, rows, rows.shape[-1], bits, seed)
    call.run("aura_encode", codec, call.view(rows, rows.dim() - 1), scales.numel(), call.view(codes), call.view(scales))
    return codes, scales


def _encode_fake(rows: Tensor, bits: int, seed: int) -> tuple[Tensor, Tensor]:
    lead = rows.shape[:-1]
    codes = rows.new_empty((*lead, _words(rows.shape[-1], bits)), dtype=torch.int32)
    return codes, rows.new_empty(lead, dtype=torch.float32)


# rows [..., dim] -> codes [..., words] i32, scales [...] f32
aura_encode = define(
    "aura_encode", "(Tensor rows, int bits, int seed) -> (Tensor codes, Tensor scales)", _encode_fake, _encode
)


def _decode(
    codes: Tensor, scales: Tensor, dim: int, bits: int, seed: int, rotate_back: bool, dtype: torch.dtype
) -> Tensor:
    if codes.shape != (*scales.shape, _words(dim, bits)):
        raise InvalidError(f"codes: shape {tuple(codes.shape)}, expected {(*scales.shape, _words(dim, bits))}")
    rows = scales.new_empty((*scales.shape, dim), dtype=dtype)
    call = Call(codes)
    codec = _codec_of(call, codes, dim, bits, seed)
    call.run("aura_decode", codec, call.view(codes), call.view(scales), scales.numel(), rotate_back, call.view(rows))
    return rows


aura_decode = define(
    "aura_decode",
    "(Tensor codes, Tensor scales, int dim, int bits, int seed, bool rotate_back, ScalarType dtype) -> Tensor",
    lambda codes, scales, dim, bits, seed, rotate_back, dtype: scales.new_empty((*scales.shape, dim), dtype=dtype),
    _decode,
)


def _store(keys: Tensor, values: Tensor, positions: Tensor, *arguments: Any) -> None:
    arrays, codecs = arguments[:4], arguments[4:]
    shape = (positions.numel(), arrays[2].shape[0], keys.shape[-1])
    for name, tensor in (("keys", keys), ("values", values)):
        if tensor.shape != shape:
            raise InvalidError(f"{name}: shape {tuple(tensor.shape)}, expected {shape}")
    call = Call(keys)
    cache = _cache(call, arrays, codecs, shape[2], 0)
    call.run("aura_store", cache, call.view(keys, 1), call.view(values, 1), call.view(positions.int()), shape[0])


_ARRAYS = "key_codes", "value_codes", "key_scales", "value_scales"
_CODECS = "int key_bits, int value_bits, int seed"
# keys, values [tokens, n_kv_heads, dim]; positions [tokens]
aura_store = define(
    "aura_store",
    "(Tensor keys, Tensor values, Tensor positions, "
    f"{', '.join(f'Tensor({letter}!) {name}' for letter, name in zip('abcd', _ARRAYS))}, {_CODECS}) -> ()",
    lambda *arguments: None,
    _store,
)


def _attention(queries: Tensor, positions: Tensor | None, sinks: Tensor | None, *arguments: Any) -> Tensor:
    arrays, codecs, (n_keys, scale, window) = arguments[:4], arguments[4:7], arguments[7:]
    n_tokens, n_heads, dim = queries.shape
    out = queries.new_empty(queries.shape)
    call = Call(queries)
    cache = _cache(call, arrays, codecs, dim, n_keys)
    asked = call.new("aura_queries")
    asked.queries, asked.n_tokens, asked.n_heads = call.view(queries, 1), n_tokens, n_heads
    asked.scale, asked.causal, asked.window = scale, positions is not None, window
    asked.positions = call.view(None if positions is None else positions.int())
    asked.sinks = call.view(None if sinks is None else sinks.float())
    if call.device < 0:
        call.run("aura_attention", cache, asked, call.view(out))
        return out
    workspace = call.workspace("aura_queries", cache, n_tokens, n_heads)
    block = ffi.new("size_t *")
    check(lib.qn_cuda_aura_flash_block(cuda_kernels(call.device), cache, n_tokens, n_heads, block))
    n_blocks = -(-n_keys // block[0])
    if n_blocks <= 1:  # a thread block for all keys
        call.run("aura_attention", cache, asked, call.view(out), *workspace)
        return out
    sizes = (n_tokens, n_heads, n_blocks)
    partials = [call.view(out.new_empty(shape, dtype=torch.float32)) for shape in ((*sizes, dim), sizes, sizes)]
    call.run("aura_flash_pass1", cache, asked, block[0], *partials, *workspace)
    value_codec = _codec_of(call, queries, dim, codecs[1], codecs[2])
    call.run("aura_flash_pass2", value_codec, *sizes, *partials, asked.sinks, call.view(out))
    return out


# queries [tokens, n_heads, dim]; positions [tokens] for a causal mask; sinks [n_heads]; window 0: none
aura_attention = define(
    "aura_attention",
    f"(Tensor queries, Tensor? positions, Tensor? sinks, {', '.join(f'Tensor {name}' for name in _ARRAYS)}, {_CODECS},"
    " int n_keys, float scale, int window) -> Tensor",
    lambda queries, *others: queries.new_empty(queries.shape),
    _attention,
)

# ---- The cache ----


class AuraCache:
    """A KV cache of AURA codes for one layer, and attention over it: keys and values of `dim` elements at positions
    below capacity.

    Tensors: key_codes, value_codes [n_kv_heads, capacity, words] i32; key_scales, value_scales [n_kv_heads, capacity]
    f32.
    """

    def __init__(
        self,
        dim: int,
        n_kv_heads: int,
        capacity: int,
        key_bits: int = 4,
        value_bits: int = 4,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.dim, self.codecs = dim, (key_bits, value_bits, seed)
        for bits in (key_bits, value_bits):
            _codec(dim, bits, seed)  # refuses unsupported dimensions and bits
        self.key_codes, self.value_codes = (
            torch.zeros(n_kv_heads, capacity, _words(dim, bits), dtype=torch.int32, device=device)
            for bits in (key_bits, value_bits)
        )
        self.key_scales, self.value_scales = (torch.zeros(n_kv_heads, capacity, device=device) for _ in range(2))

    def _arrays(self) -> tuple[Tensor, ...]:
        return self.key_codes, self.value_codes, self.key_scales, self.value_scales

    def store(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        """Encode keys and values [n_tokens, n_kv_heads, dim] and store them at positions [n_tokens], each at most
        once."""
        aura_store(keys, values, positions, *self._arrays(), *self.codecs)

    def attention(
        self,
        queries: Tensor,
        n_keys: int,
        *,
        positions: Tensor | None = None,
        scale: float | None = None,
        window: int = 0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of queries [n_tokens, n_heads, dim] to the first n_keys positions: [n_tokens, n_heads, dim] of
        their type.

        positions: [n_tokens], a query attends to positions 0 to its own; None: to all; scale: dim^-1/2 if None;
        window: sliding window, 0: none; sinks: [n_heads] attention sinks
        """
        if queries.dim() != 3 or queries.shape[2] != self.dim:
            raise InvalidError(f"queries: shape {tuple(queries.shape)}, expected (n_tokens, n_heads, {self.dim})")
        if positions is None and window:
            raise InvalidError(f"window: {window} without positions")
        if positions is not None and positions.shape != queries.shape[:1]:
            raise InvalidError(f"positions: shape {tuple(positions.shape)}, expected ({queries.shape[0]},)")
        scale = self.dim**-0.5 if scale is None else scale
        return aura_attention(  # type: ignore[no-any-return]
            queries, positions, sinks, *self._arrays(), *self.codecs, n_keys, scale, window
        )
