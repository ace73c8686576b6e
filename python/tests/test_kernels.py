"""pyquern.kernels against float64 references, and what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import reference
from reference import Array, error, to_bf16

import pyquern
from pyquern import kernels

# dtype of the arrays: conversion, and the error that its roundings allow
DTYPES = {
    "f32": (lambda x: np.ascontiguousarray(x, np.float32), 1e-5),
    "f16": (lambda x: np.ascontiguousarray(x, np.float16), 2e-3),
    "bf16": (to_bf16, 1e-2),
}


@pytest.fixture(params=list(DTYPES))
def dtype(request: pytest.FixtureRequest) -> Any:
    return DTYPES[request.param]


def gdn_arrays(
    rng: np.random.Generator, batch: int, tokens: int, k_heads: int, v_heads: int, head_k: int, head_v: int
) -> list[Array]:
    q, k = (rng.standard_normal((batch, tokens, k_heads, head_k)) for _ in range(2))
    v = rng.standard_normal((batch, tokens, v_heads, head_v))
    g, beta = -rng.exponential(0.3, (2, batch, tokens, v_heads)).astype(np.float32)
    return [q, k, v, g, 1 / (1 + np.exp(beta))]


# ---- Loading ----


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    if "QN_PYQUERN_LIBRARY" not in os.environ:
        assert pyquern.__version__ == version("pyquern")


def test_a_library_that_is_not_there_is_an_import_error() -> None:
    environment = {**os.environ, "QN_PYQUERN_LIBRARY": "/nonexistent/libquern.so"}
    run = subprocess.run(
        [sys.executable, "-c", "import pyquern"], env=environment, capture_output=True, text=True, check=False
    )
    assert (
        run.returncode == 1 and "ImportError: libquern cannot be loaded" in run.stderr and "/nonexistent" in run.stderr
    )


def test_numpy_and_torch_are_not_imported_with_the_package() -> None:
    code = "import pyquern, sys; print({'numpy', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout == "set()\n"


def test_errors_carry_the_text_of_the_library() -> None:
    with pytest.raises(pyquern.InvalidError, match="block: 3, expected a power of two"):
        kernels.hadamard(np.zeros((1, 12), np.float32), 3)
    with pytest.raises(pyquern.UnsupportedError):
        kernels.encode(np.zeros(256, np.float32), "q4_k")
    assert issubclass(pyquern.InvalidError, (pyquern.Error, ValueError))


# ---- Gated DeltaNet ----


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 16, 16), (2, 65, 1, 3, 48, 32), (1, 130, 2, 4, 128, 64), (3, 7, 4, 4, 16, 256)]
)
@pytest.mark.parametrize("mapping", ["grouped", "tiled"])
def test_gdn_chunk(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], mapping: Any) -> None:
    convert, tolerance = dtype
    q, k, v, g, beta = gdn_arrays(rng, *shape)
    q, k, v, beta = convert(q), convert(k), convert(v), beta.astype(np.float32)
    initial = rng.standard_normal((shape[0], shape[3], shape[5], shape[4])).astype(np.float32)
    o, final = kernels.gdn_chunk(
        q, k, v, g, beta, normalize=True, initial_state=initial, output_final_state=True, mapping=mapping
    )
    expected, state = reference.delta_rule(
        q, k, v, g, beta, shape[4] ** -0.5, initial, normalize=True, tiled=mapping == "tiled"
    )
    assert final is not None and o.dtype == v.dtype
    assert error(o, expected) < tolerance and error(final, state) < tolerance


def test_gdn_ragged(rng: np.random.Generator) -> None:
    q, k, v, g, beta = (x.astype(np.float32) for x in gdn_arrays(rng, 1, 150, 2, 4, 32, 48))
    lengths = np.array([0, 3, 3, 70, 147])
    initial = rng.standard_normal((4, 4, 48, 32)).astype(np.float32)
    expected, state = reference.delta_rule(q, k, v, g, beta, 0.25, initial, normalize=True, cu_seqlens=lengths)
    o, final = kernels.gdn_chunk(
        q, k, v, g, beta, scale=0.25, normalize=True, initial_state=initial, output_final_state=True, cu_seqlens=lengths
    )
    assert final is not None and error(o, expected) < 1e-5 and error(final, state) < 1e-5
    assert not o[:, 147:].any()  # tokens outside of all sequences
    stepped = initial.copy()
    o = kernels.gdn_step(q, k, v, g, beta, stepped, scale=0.25, normalize=True, cu_seqlens=lengths)
    assert error(o, expected) < 1e-5 and error(stepped, state) < 1e-5


def test_gdn_step_continues_chunks(rng: np.random.Generator) -> None:
    arrays = [x.astype(np.float32) for x in gdn_arrays(rng, 2, 71, 1, 2, 64, 64)]
    expected, final = kernels.gdn_chunk(*arrays, normalize=True, output_final_state=True)
    _, state = kernels.gdn_chunk(*(x[:, :70] for x in arrays), normalize=True, output_final_state=True)
    assert state is not None and final is not None
    o = kernels.gdn_step(*(x[:, 70:] for x in arrays), state, normalize=True)
    assert error(o, expected[:, 70:]) < 1e-5 and error(state, final) < 1e-5


def test_gdn_refuses(rng: np.random.Generator) -> None:
    q, k, v, g, beta = (x.astype(np.float32) for x in gdn_arrays(rng, 1, 4, 2, 4, 16, 16))
    with pytest.raises(pyquern.InvalidError, match=r"k: shape \(1, 3, 2, 16\), expected \(1, 4, 2, 16\)"):
        kernels.gdn_chunk(q, k[:, :3], v, g, beta)
    with pytest.raises(pyquern.InvalidError, match="dtype float64"):
        kernels.gdn_chunk(q.astype(np.float64), k, v, g, beta)
    with pytest.raises(pyquern.InvalidError, match="g"):
        kernels.gdn_chunk(q, k, v, -g, beta)
    with pytest.raises(pyquern.InvalidError, match="v_heads: 3"):
        kernels.gdn_chunk(q, k, v[:, :, :3], g[:, :, :3], beta[:, :, :3])
    with pytest.raises(pyquern.InvalidError, match="mapping: 'other'"):
        kernels.gdn_chunk(q, k, v, g, beta, mapping="other")  # type: ignore[arg-type]
    with pytest.raises(pyquern.InvalidError, match="state: expected a contiguous, writeable"):
        kernels.gdn_step(q, k, v, g, beta, np.zeros((1, 4, 16, 32), np.float32)[..., ::2])
    for lengths in ([0, 5], [1, 4], [0, 3, 2], [0], [0, -1], [0.0, 4.0]):
        with pytest.raises(pyquern.InvalidError, match="cu_seqlens"):
            kernels.gdn_chunk(q, k, v, g, beta, cu_seqlens=lengths)


# ---- Convolution ----


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("lengths", [None, [0, 2, 2, 9, 12]])
def test_conv_scan(rng: np.random.Generator, dtype: Any, taps: int, lengths: list[int] | None) -> None:
    convert, tolerance = dtype
    batch, tokens, channels = (3, 5, 37) if lengths is None else (1, 12, 37)
    n = batch if lengths is None else len(lengths) - 1
    x, initial = (
        convert(rng.standard_normal((batch, tokens, channels))),
        convert(rng.standard_normal((n, taps - 1, channels))),
    )
    weights, bias = (
        rng.standard_normal((channels, taps)).astype(np.float32),
        rng.standard_normal(channels).astype(np.float32),
    )
    cu_seqlens = None if lengths is None else np.array(lengths)
    y, final = kernels.conv_scan(
        x, weights, bias, initial_state=initial, output_final_state=True, cu_seqlens=cu_seqlens
    )
    expected, state = reference.conv(x, weights, bias, initial, cu_seqlens)
    assert final is not None and error(y, expected) < tolerance
    assert np.array_equal(reference.to_float64(final), state)


def test_conv_step(rng: np.random.Generator, dtype: Any) -> None:
    convert, tolerance = dtype
    x, weights = convert(rng.standard_normal((2, 1, 24))), rng.standard_normal((24, 4)).astype(np.float32)
    state = convert(rng.standard_normal((2, 3, 24)))
    expected, final = reference.conv(x, weights, None, state)
    y = kernels.conv_step(x[:, 0], weights, None, state)
    assert error(y, expected[:, 0]) < tolerance and np.array_equal(reference.to_float64(state), final)


# ---- Rows ----


def test_norms(rng: np.random.Generator, dtype: Any) -> None:
    convert, tolerance = dtype
    x, gate = convert(rng.standard_normal((3, 2, 45))), convert(rng.standard_normal((3, 2, 45)))
    weight = rng.standard_normal(45).astype(np.float32)
    exact, z = reference.to_float64(x), reference.to_float64(gate)
    normed = exact * weight / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6)
    assert error(kernels.l2_norm(x), exact / np.sqrt((exact**2).sum(-1, keepdims=True) + 1e-6)) < tolerance
    assert error(kernels.gated_rms_norm(x, gate, weight), normed * reference.silu(z)) < tolerance
    if x.dtype == np.float32:
        assert error(kernels.rms_norm(x, weight), normed) < tolerance
        assert error(kernels.swiglu(gate, x), reference.silu(z) * exact) < tolerance
    with pytest.raises(pyquern.InvalidError, match=r"weight: shape \(44,\), expected \(45,\)"):
        kernels.gated_rms_norm(x, gate, weight[:44])


def test_hadamard(rng: np.random.Generator) -> None:
    x, signs = rng.standard_normal((3, 24)).astype(np.float32), rng.choice([-1.0, 1.0], 24).astype(np.float32)
    h = np.array([[(-1) ** (r & c).bit_count() for c in range(8)] for r in range(8)]) / np.sqrt(8)
    expected = ((x * signs).reshape(3, 3, 8) @ h).reshape(3, 24)
    y = kernels.hadamard(x, 8, signs)
    assert error(y, expected) < 1e-6
    assert error(kernels.hadamard(y, 8, signs, "sign_last"), x) < 1e-6
    assert error(kernels.hadamard(x.T.copy().T, 8), (x.reshape(3, 3, 8) @ h).reshape(3, 24)) < 1e-6


# ---- Weights ----


@pytest.mark.parametrize("name", ["q1_0", "q2_0", "pq2_0", "ptq1_0", "tq2_0", "q8_0", "f16", "bf16", "f32"])
def test_matmul(rng: np.random.Generator, name: str) -> None:
    weights = rng.choice([-0.5, 0.5] if name == "q1_0" else [-0.5, 0.0, 0.5], (6, 256)).astype(np.float32)
    weights[:, ::64] = 0.5  # every block has its largest magnitude
    acts = rng.standard_normal((2, 3, 256)).astype(np.float32)
    blocks = kernels.encode(weights, name)
    assert error(kernels.decode(blocks, name, weights.size).reshape(weights.shape), weights) < 1e-6
    out = kernels.matmul(blocks, name, acts)
    # Quantised weights have int8 activations: a step of 1/127 of the largest of 32 values, about 1e-2 of their norm.
    assert out.shape == (2, 3, 6) and error(out, acts.astype(np.float64) @ weights.T) < 2e-2


def test_weights_refused() -> None:
    with pytest.raises(pyquern.InvalidError, match="data: 17 bytes, expected 18"):
        kernels.decode(np.zeros(17, np.uint8), "q1_0", 128)
    with pytest.raises(pyquern.InvalidError, match="dtype: 'q9_0'"):
        kernels.decode(np.zeros(17, np.uint8), "q9_0", 128)
    with pytest.raises(pyquern.InvalidError, match="weights: 20 bytes, expected a multiple of 18"):
        kernels.matmul(np.zeros(20, np.uint8), "q1_0", np.zeros((1, 128), np.float32))
    with pytest.raises(pyquern.InvalidError):
        kernels.encode(np.full(128, np.nan, np.float32), "q1_0")


# ---- AURA ----


@pytest.mark.parametrize(("dim", "bits"), [(64, 2), (80, 3), (128, 4), (96, 6), (256, 8)])
def test_aura_codec(rng: np.random.Generator, dim: int, bits: int) -> None:
    codec = kernels.AuraCodec(dim, bits, seed=7)
    rotation, boundaries, codebook = codec.tables()
    rows = rng.standard_normal((5, 3, dim)).astype(np.float32)
    rows[0, 0] = 0
    codes, scales = codec.encode(rows)
    # The definition: codes count the boundaries below, scales give back the norm.
    norms = np.linalg.norm(rows.astype(np.float64), axis=-1, keepdims=True)
    y = np.divide(rows @ rotation.T.astype(np.float64), norms, out=np.zeros(rows.shape), where=norms > 1e-8)
    bit = np.unpackbits(codes.view(np.uint8), axis=-1, bitorder="little")[..., : dim * bits].reshape(*rows.shape, bits)
    found = (bit << np.arange(bits)).sum(-1)
    near = np.abs(y[..., None] - boundaries).min(-1) < 1e-6  # float32 may round to the other side
    assert np.array_equal(np.where(near, 0, found), np.where(near, 0, (y[..., None] > boundaries).sum(-1)))
    in_basis = codec.decode(codes, scales, rotate_back=False)
    assert error(in_basis, scales[..., None].astype(np.float64) * codebook[found]) < 1e-6
    assert error(codec.decode(codes, scales), in_basis.astype(np.float64) @ rotation) < 1e-5
    assert codec.decode(codes, scales, dtype=np.uint16).dtype == np.uint16


@pytest.mark.parametrize("window", [0, 9])
def test_aura_attention(rng: np.random.Generator, dtype: Any, window: int) -> None:
    convert, tolerance = dtype
    key_codec, value_codec = kernels.AuraCodec(64, 6, seed=1), kernels.AuraCodec(64, 4, seed=2)
    cache = kernels.AuraCache(key_codec, value_codec, 2, 50)
    keys, values = (rng.standard_normal((41, 2, 64)).astype(np.float32) for _ in range(2))
    cache.store(keys, values, np.arange(41))
    queries, positions = convert(rng.standard_normal((3, 4, 64))), np.array([0, 17, 40])
    sinks = rng.standard_normal(4).astype(np.float32)
    out = cache.attention(queries, 41, positions=positions, window=window, sinks=sinks)
    k = key_codec.decode(cache.key_codes[:, :41], cache.key_scales[:, :41]).astype(np.float64)
    v = value_codec.decode(cache.value_codes[:, :41], cache.value_scales[:, :41]).astype(np.float64)
    expected = reference.attention(reference.to_float64(queries), k, v, 0.125, positions, window, sinks)
    assert error(out, expected) < tolerance
    everything = reference.attention(reference.to_float64(queries), k, v, 0.125, None, 0, None)
    assert error(cache.attention(queries, 41), everything) < tolerance
    with pytest.raises(pyquern.InvalidError, match="positions"):
        cache.store(keys[:1], values[:1], [50])


def test_threads(rng: np.random.Generator) -> None:
    arrays = [x.astype(np.float32) for x in gdn_arrays(rng, 1, 200, 2, 4, 64, 64)]
    expected, _ = kernels.gdn_chunk(*arrays, normalize=True)
    same: list[bool] = []

    def work() -> None:
        for _ in range(5):
            same.append(np.array_equal(kernels.gdn_chunk(*arrays, normalize=True)[0], expected))
            with pytest.raises(pyquern.InvalidError, match="block: 3"):
                kernels.hadamard(np.zeros((1, 12), np.float32), 3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 20
