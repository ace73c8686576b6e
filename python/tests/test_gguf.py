"""pyquern.gguf on the models of tests/golden, against tools/ggufio.py, and on damaged files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyquern
from pyquern import gguf, kernels

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
sys.path.insert(0, str(REPOSITORY / "tools"))
import ggufio

MODELS = [
    "llama.q1_0",
    "qwen3.pq2_0",
    "qwen3.ptq1_0",
    "qwen35-rotated.q1_0",
    "qwen35-rotated.q2_0",
    "qwen35-rotated.f16",
]


@pytest.mark.parametrize("name", MODELS)
def test_tensors(name: str) -> None:
    path = GOLDEN / f"{name}.gguf"
    file, (_, expected) = gguf.File(path), ggufio.read(path)
    assert list(file.tensors) == list(expected)
    for tensor in expected.values():
        dtype, data = file.data(tensor.name)
        assert dtype == tensor.type and file.tensors[tensor.name].shape == tensor.shape
        assert bytes(data) == tensor.data.tobytes()
        found = kernels.decode(np.frombuffer(data, np.uint8), dtype, int(np.prod(tensor.shape)))
        assert np.array_equal(found.reshape(tensor.shape), tensor.decode().astype(np.float32))


def rotated(name: str) -> Any:
    return gguf.File(GOLDEN / f"qwen35-rotated.{name}.gguf")


def test_rotation() -> None:
    assert gguf.File(GOLDEN / "llama.q1_0.gguf").rotation("blk.0.ffn_up.weight") is None
    file = rotated("f16")
    keys, _ = ggufio.read(file.path)
    # The signs of three widths, 64, 128 and 192, one after the other.
    for name, width in (("blk.0.ffn_down.weight", 64), ("blk.2.attn_output.weight", 128)):
        assert file.tensors[name].shape[1] == width
        begin = sum(w for w in keys["prism.hadamard.sign_widths"] if w < width)
        signs = tuple(map(float, keys["prism.hadamard.sign_values"][begin : begin + width]))
        assert file.rotation(name) == (32, signs)
    assert rotated("q2_0").rotation("blk.0.ffn_up.weight") == (64, None)
    assert file.rotation("blk.0.attn_norm.weight") is None
    for name, text in (
        ("token_embd.weight", "table of rotated rows"),
        ("blk.0.ssm_out.weight", "another order of heads"),
    ):
        with pytest.raises(pyquern.UnsupportedError, match=text):
            file.rotation(name)


def test_refuses(tmp_path: Path) -> None:
    whole = (GOLDEN / "llama.q1_0.gguf").read_bytes()
    path = tmp_path / "damaged.gguf"
    for size in (0, 3, 4, 23, 100, 1000, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(pyquern.FormatError):
            file = gguf.File(path)
            for name in file.tensors:
                file.data(name)
    path.write_bytes(whole[:4] + b"\2\0\0\0" + whole[8:])
    with pytest.raises(pyquern.UnsupportedError, match="version 2"):
        gguf.File(path)
    with pytest.raises(pyquern.InvalidError, match="no tensor 'other'"):
        gguf.File(GOLDEN / "llama.q1_0.gguf").data("other")
    # Any byte of the header may be wrong.
    random = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[random.integers(4, 4000)] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        try:
            file = gguf.File(path)
            for name in file.tensors:
                file.data(name)
        except pyquern.Error:
            pass


def test_rotations_that_are_not_known_are_refused(tmp_path: Path) -> None:
    keys, tensors = ggufio.read(GOLDEN / "qwen35-rotated.pq2_0.gguf")
    path, name = tmp_path / "changed.gguf", "blk.0.ffn_up.weight"
    for key, value, kind in [
        ("version", 3, pyquern.UnsupportedError),
        ("version", None, pyquern.UnsupportedError),
        ("transform", "other", pyquern.UnsupportedError),
        ("axis", "other", pyquern.UnsupportedError),
        ("sign_mode", "other", pyquern.UnsupportedError),
        ("block_size", 48, pyquern.FormatError),
        ("block_size", 256, pyquern.FormatError),
        ("weight_names", 1, pyquern.FormatError),
        ("sign_widths", [64.0], pyquern.FormatError),
        ("sign_widths", [64], pyquern.FormatError),
        ("sign_values", [0.5] * 128, pyquern.FormatError),
        ("sign_values", [1.0] * 127, pyquern.FormatError),
    ]:
        changed = {**keys, f"prism.hadamard.{key}": value}
        if value is None:
            del changed[f"prism.hadamard.{key}"]
        ggufio.write(path, changed, list(tensors.values()))
        with pytest.raises(kind, match=key):
            gguf.File(path).rotation(name)


@pytest.mark.parametrize(
    "name",
    [
        "llama.q1_0",
        "qwen3.pq2_0",
        "qwen3.ptq1_0",
        "qwen35-rotated.q1_0",
        "qwen35-rotated.pq2_0",
        "qwen35-rotated.ptq1_0",
    ],
)
def test_linear(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from pyquern.torch import QuernLinear

    path, tensor = GOLDEN / f"{name}.gguf", "blk.0.ffn_up.weight"
    layer = QuernLinear.from_gguf(path, tensor)
    weights = ggufio.read(path)[1][tensor].decode()
    torch.manual_seed(1)
    x = torch.randn(2, 3, weights.shape[1])
    rotation = gguf.File(path).rotation(tensor)
    acts = x.double().numpy()
    if rotation:
        n = rotation.block
        h = np.array([[(-1) ** (r & c).bit_count() for c in range(n)] for r in range(n)]) / np.sqrt(n)
        acts = ((acts * np.array(rotation.signs)).reshape(-1, n) @ h).reshape(acts.shape)
    wanted = acts @ weights.T
    # int8 activations: a step of 1/127 of the largest of 32 values, about 1e-2 of their norm
    assert np.linalg.norm(layer(x).double().numpy() - wanted) < 2e-2 * np.linalg.norm(wanted)
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    arguments = (x, layer.weight, None, layer.signs, layer.dtype, layer.out_features, layer.rotation_block)
    torch.library.opcheck(torch.ops.pyquern.quantized_matmul.default, arguments)
    loaded = QuernLinear(layer.in_features, layer.out_features, layer.dtype, rotation=rotation)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(loaded(x), layer(x))
    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), layer(x))


def test_linear_refuses() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import torch

    from pyquern.torch import QuernLinear

    with pytest.raises(pyquern.InvalidError, match="1 dimensions, expected 2"):
        QuernLinear.from_gguf(GOLDEN / "llama.q1_0.gguf", "blk.0.attn_norm.weight")
    layer = QuernLinear.from_gguf(GOLDEN / "llama.q1_0.gguf", "blk.0.ffn_up.weight")
    with pytest.raises(pyquern.InvalidError, match="x: shape"):
        layer(torch.zeros(1, layer.in_features + 128))
    with pytest.raises(pyquern.InvalidError):
        QuernLinear(100, 4, "q1_0")
    with pytest.raises(pyquern.InvalidError, match="dtype: 'q9'"):
        QuernLinear(128, 4, "q9")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q2_0", "tq1_0", "q4_k", "q8_0"])
def test_linear_types(dtype: str) -> None:
    """Every type that quern multiplies by."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from pyquern.torch import QuernLinear

    torch.manual_seed(1)
    layer = QuernLinear(256, 8, dtype, bias=True)
    blocks = torch.randint(0, 60, layer.weight.shape, dtype=torch.uint8)  # of types that are not encoded
    if dtype != "q4_k":
        blocks = torch.from_numpy(kernels.encode(torch.randn(8, 256).numpy(), dtype))
    layer.weight.copy_(blocks)
    layer.bias.copy_(torch.randn(8))
    weights = kernels.decode(layer.weight.numpy(), dtype, 8 * 256).reshape(8, 256)
    x = torch.randn(3, 256)
    wanted = x.double().numpy() @ weights.T.astype(np.float64) + layer.bias.double().numpy()
    assert np.linalg.norm(layer(x).double().numpy() - wanted) < 2e-2 * np.linalg.norm(wanted)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    assert set(state) == {"weight", "bias"}
    layer.half()  # the weights stay as they are
    assert torch.equal(layer.weight, state["weight"]) and layer.bias.dtype == torch.float16
    loaded = QuernLinear(256, 8, dtype, bias=True)
    loaded.load_state_dict(state)
    assert torch.equal(loaded.half()(x.half()), layer(x.half()))
