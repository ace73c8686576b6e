"""pyquern.torch on the CPU: against float64 references, under torch.compile and torch.export, and what it refuses."""

from __future__ import annotations

import shutil
import threading
from typing import Any

import numpy as np
import pytest
import reference
from reference import error

import pyquern

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import pyquern.torch as pt
from pyquern import kernels

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
OPERATORS = (pt.chunk_gated_delta_rule, pt.fused_recurrent_gated_delta_rule)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(20261122)


@pytest.fixture(params=list(TOLERANCES), ids=str)
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


def gdn_tensors(
    batch: int, tokens: int, heads: int, v_heads: int, head_k: int, head_v: int, dtype: Any = torch.float32
) -> dict[str, Any]:
    return {
        "q": torch.randn(batch, tokens, heads, head_k).to(dtype),
        "k": torch.randn(batch, tokens, heads, head_k).to(dtype),
        "v": torch.randn(batch, tokens, v_heads, head_v).to(dtype),
        "g": -torch.rand(batch, tokens, v_heads),
        "beta": torch.rand(batch, tokens, v_heads),
    }


def array(tensor: Any) -> Any:
    """A tensor of any floating type as a float64 array."""
    return tensor.detach().double().numpy()


def expected(tensors: dict[str, Any], state: Any = None, scale: float | None = None, **options: Any) -> tuple[Any, Any]:
    """The reference, with states [N, HV, K, V]."""
    arrays = {name: array(tensor) for name, tensor in tensors.items()}
    initial = None if state is None else array(state).swapaxes(-1, -2)
    scale = tensors["k"].shape[-1] ** -0.5 if scale is None else scale
    o, final = reference.delta_rule(**arrays, scale=scale, initial=initial, normalize=True, **options)
    return o, final.swapaxes(-1, -2)


# ---- The gated delta rule ----


# Sizes of heads that the kernels have, and that are padded.
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 16, 16), (2, 70, 2, 6, 64, 48), (1, 65, 3, 3, 40, 24), (2, 3, 1, 2, 1, 7)]
)
def test_gated_delta_rule(operator: Any, shape: tuple[int, ...], dtype: Any) -> None:
    tensors = gdn_tensors(*shape, dtype)
    state = torch.randn(shape[0], shape[3], shape[4], shape[5])
    o, final = operator(**tensors, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    exact, exact_final = expected(tensors, state)
    assert o.dtype == dtype and o.is_contiguous() and final.dtype == torch.float32 and final.is_contiguous()
    assert error(array(o), exact) < TOLERANCES[dtype] and error(array(final), exact_final) < TOLERANCES[dtype]

    v_first = state.transpose(-1, -2).contiguous()
    options = {"initial_state": v_first, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    before = v_first.clone()
    o2, final2 = operator(**tensors, **options, state_v_first=True)
    assert torch.equal(o, o2) and torch.equal(final, final2.transpose(-1, -2)) and torch.equal(v_first, before)
    with pytest.warns(DeprecationWarning, match="state_v_first"):
        assert torch.equal(operator(**tensors, **options, transpose_state_layout=True)[1], final2)
    with pytest.raises(pyquern.InvalidError, match="transpose_state_layout"):
        operator(**tensors, **options, state_v_first=True, transpose_state_layout=True)
    assert operator(**tensors, use_qk_l2norm_in_kernel=True)[1] is None


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("lengths_dtype", [torch.int32, torch.int64])
def test_ragged(operator: Any, lengths_dtype: Any) -> None:
    tensors, lengths = gdn_tensors(1, 90, 2, 4, 32, 32), [0, 1, 1, 70, 88]
    state = torch.randn(4, 4, 32, 32)
    options = {"use_qk_l2norm_in_kernel": True, "output_final_state": True, "initial_state": state, "scale": 0.3}
    o, final = operator(**tensors, **options, cu_seqlens=torch.tensor(lengths, dtype=lengths_dtype))
    exact, exact_final = expected(tensors, state, 0.3, cu_seqlens=np.array(lengths))
    assert error(array(o), exact) < 1e-5 and error(array(final), exact_final) < 1e-5
    assert not o[:, 88:].any()
    if operator is pt.chunk_gated_delta_rule:
        on_cpu = torch.tensor(lengths)
        o2, _ = operator(
            **tensors, **options, cu_seqlens=on_cpu, cu_seqlens_cpu=on_cpu, chunk_indices=on_cpu, chunk_size=32
        )
        assert torch.equal(o, o2)


@pytest.mark.parametrize("operator", OPERATORS)
def test_calls_that_differ_in_one_thing(operator: Any) -> None:
    """Arguments of the library are kept from call to call: whatever changes must reach it."""
    tensors = gdn_tensors(1, 20, 1, 2, 16, 32)
    state, lengths = torch.randn(1, 2, 16, 32), torch.tensor([0, 20])
    base = {"scale": 0.5, "use_qk_l2norm_in_kernel": True, "output_final_state": True}
    o, final = operator(**tensors, **base)
    exact, exact_final = expected(tensors, scale=0.5)
    assert error(array(o), exact) < 1e-5 and error(array(final), exact_final) < 1e-5
    o, _ = operator(**tensors, **{**base, "scale": 0.25})
    assert error(array(o), exact / 2) < 1e-5
    o, final = operator(**tensors, **base, cu_seqlens=lengths)
    assert error(array(o), exact) < 1e-5 and error(array(final), exact_final) < 1e-5
    o, final = operator(**tensors, **{**base, "output_final_state": False})
    assert error(array(o), exact) < 1e-5 and final is None
    o, final = operator(**tensors, **base, initial_state=state)
    with_state, with_state_final = expected(tensors, state, scale=0.5)
    assert error(array(o), with_state) < 1e-5 and error(array(final), with_state_final) < 1e-5
    small = {**tensors, "q": tensors["q"] / 8, "k": tensors["k"] / 8}
    o, _ = operator(**small, **{**base, "use_qk_l2norm_in_kernel": False})
    arrays = {name: array(tensor) for name, tensor in small.items()}
    assert error(array(o), reference.delta_rule(**arrays, scale=0.5)[0]) < 1e-5


@pytest.mark.parametrize("operator", OPERATORS)
def test_strides(operator: Any) -> None:
    tensors = gdn_tensors(2, 20, 2, 4, 32, 48)
    o, _ = operator(**tensors, use_qk_l2norm_in_kernel=True)
    # Parts of one projection, as layers make them; heads before tokens; every second element.
    joined = torch.cat([tensors[name].flatten(2) for name in "qkv"], -1)
    parts = joined.split([64, 64, 192], -1)
    views = dict(zip("qkv", (part.view(2, 20, -1, d) for part, d in zip(parts, (32, 32, 48)))))
    assert torch.equal(operator(**{**tensors, **views}, use_qk_l2norm_in_kernel=True)[0], o)
    swapped = {name: x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in tensors.items()}
    assert torch.equal(operator(**swapped, use_qk_l2norm_in_kernel=True)[0], o)
    doubled = {name: torch.stack([x, x], -1)[..., 0] for name, x in tensors.items()}
    assert torch.equal(operator(**doubled, use_qk_l2norm_in_kernel=True)[0], o)


@pytest.mark.parametrize("operator", OPERATORS)
def test_types_mixed(operator: Any) -> None:
    """The rule is computed in the widest type of q, k and v; gates and states may be of any."""
    tensors = gdn_tensors(1, 20, 1, 2, 16, 32)
    tensors = {name: x.bfloat16() if name in ("v", "g", "beta") else x for name, x in tensors.items()}
    state = torch.randn(1, 2, 16, 32).half()
    o, final = operator(**tensors, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
    exact, exact_final = expected(tensors, state)
    assert o.dtype == torch.bfloat16 and error(array(o), exact) < TOLERANCES[torch.bfloat16]
    assert final.dtype == torch.float32 and error(array(final), exact_final) < 1e-5


@pytest.mark.parametrize("operator", OPERATORS)
def test_gates_inside(operator: Any) -> None:
    tensors = gdn_tensors(1, 9, 1, 2, 16, 16)
    raw, logits = torch.randn(1, 9, 2), torch.randn(1, 9, 2)
    A_log, dt_bias = torch.randn(2), torch.randn(2)
    for bias, neg_eigval in ((dt_bias, True), (None, False)):
        o, _ = operator(
            **{**tensors, "g": raw, "beta": logits},
            use_gate_in_kernel=True,
            A_log=A_log,
            dt_bias=bias,
            use_beta_sigmoid_in_kernel=True,
            allow_neg_eigval=neg_eigval,
            use_qk_l2norm_in_kernel=True,
        )
        g = -np.exp(array(A_log)) * np.log1p(np.exp(array(raw) + (0 if bias is None else array(bias))))
        beta = (2 if neg_eigval else 1) / (1 + np.exp(-array(logits)))
        exact, _ = expected({**tensors, "g": torch.tensor(g), "beta": torch.tensor(beta)})
        assert error(array(o), exact) < 1e-5
    exact, _ = expected({**tensors, "g": torch.zeros(1, 9, 2), "beta": torch.ones(1, 9, 2)})
    o, _ = operator(**{**tensors, "g": None, "beta": None}, use_qk_l2norm_in_kernel=True)
    assert error(array(o), exact) < 1e-5


@pytest.mark.parametrize("operator", OPERATORS)
def test_nothing_to_do(operator: Any) -> None:
    state = torch.randn(2, 2, 16, 32)
    o, final = operator(**gdn_tensors(2, 0, 1, 2, 16, 32), initial_state=state, output_final_state=True)
    assert o.shape == (2, 0, 2, 32) and torch.equal(final, state) and final.data_ptr() != state.data_ptr()
    o, final = operator(
        **gdn_tensors(1, 3, 1, 2, 16, 32), cu_seqlens=torch.zeros(1, dtype=torch.int64), output_final_state=True
    )
    assert not o.any() and final.shape == (0, 2, 16, 32)


@pytest.mark.parametrize("operator", OPERATORS)
def test_refuses(operator: Any) -> None:
    tensors = gdn_tensors(2, 4, 2, 4, 16, 16)
    refused = [
        ({"k": tensors["k"][:, :3]}, pyquern.InvalidError, "k: shape"),
        (
            {"v": tensors["v"][:, :, :3], "g": tensors["g"][..., :3], "beta": tensors["beta"][..., :3]},
            pyquern.InvalidError,
            "3 heads",
        ),
        ({"g": tensors["g"][..., :2]}, pyquern.InvalidError, "g: shape"),
        ({"g": -tensors["g"]}, pyquern.InvalidError, "g"),
        ({name: x[:, :, :0] for name, x in tensors.items()}, pyquern.InvalidError, "v: 0 heads"),
        ({"head_first": False}, pyquern.UnsupportedError, "head_first"),
        ({"initial_state": torch.zeros(2, 4, 16, 8)}, pyquern.InvalidError, "initial_state"),
        ({"cu_seqlens": torch.tensor([0, 4])}, pyquern.InvalidError, "a batch of 2"),
        ({"use_gate_in_kernel": True}, pyquern.InvalidError, "A_log"),
        ({"allow_neg_eigval": True}, pyquern.InvalidError, "allow_neg_eigval"),
        ({"other": 1}, TypeError, "other"),
        ({name: tensors[name].double() for name in "qkv"}, pyquern.UnsupportedError, "torch.float64"),
        ({name: torch.zeros(2, 4, 2, 272) for name in "qk"}, pyquern.UnsupportedError, "heads of 272"),
    ]
    for change, kind, text in refused:
        with pytest.raises(kind, match=text):
            operator(**{**tensors, **change})
    overload = getattr(torch.ops.pyquern, operator.__name__).default
    rest = (None, None, None, None, 0.5, True, False, False, False, 0)
    overload(*tensors.values(), *rest)
    with pytest.raises(pyquern.InvalidError, match="k: torch.float16"):
        overload(*{**tensors, "k": tensors["k"].half()}.values(), *rest)
    with pytest.raises(pyquern.InvalidError, match="g: torch.int64"):  # of the same shape as the call before
        overload(*{**tensors, "g": tensors["g"].long()}.values(), *rest)
    one = {name: x[:1] for name, x in tensors.items()}
    for lengths in ([0, 5], [1, 4], [0, 3, 2], [0, -1], [0, 2**32], [[0, 4]], [], [0.0, 4.0]):
        with pytest.raises(pyquern.InvalidError, match="cu_seqlens"):
            operator(**one, cu_seqlens=torch.tensor(lengths))
    with pytest.raises(pyquern.UnsupportedError, match="gk"):
        pt.fused_recurrent_gated_delta_rule(**tensors, gk=tensors["k"])
    with pytest.raises(pyquern.UnsupportedError, match="cp_context"):
        pt.chunk_gated_delta_rule(**tensors, cp_context=object())


@pytest.mark.parametrize("operator", OPERATORS)
def test_refuses_grad(operator: Any) -> None:
    tensors = gdn_tensors(1, 4, 1, 1, 16, 16)
    tensors["v"].requires_grad_()
    with pytest.raises(RuntimeError, match="no backward"):
        operator(**tensors)
    with torch.no_grad():
        o, _ = operator(**tensors)
    with torch.inference_mode():
        assert torch.equal(operator(**tensors)[0], o)
    assert not o.requires_grad


# ---- Convolution and norms ----


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_conv(activation: str | None, channels_last: bool, dtype: Any) -> None:
    x, state = torch.randn(2, 37, 11).to(dtype), torch.randn(2, 37, 3).to(dtype)
    if channels_last:
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    weight, bias = torch.randn(37, 4), torch.randn(37)
    if activation is None:
        weight, bias = weight.to(dtype), bias.to(dtype)
    arguments = array(x).swapaxes(1, 2), array(weight), array(bias)
    exact, last = reference.conv(*arguments, array(state).swapaxes(1, 2), activation=activation is not None)
    out = torch.empty(2, 37, 3, dtype=dtype)
    y, final = pt.causal_conv1d_fn(
        x, weight, bias, initial_states=state, return_final_states=True, final_states_out=out, activation=activation
    )
    assert final is out and y.dtype == dtype and error(array(y).swapaxes(1, 2), exact) < TOLERANCES[dtype]
    assert np.array_equal(array(final).swapaxes(1, 2), last)
    exact, _ = reference.conv(*arguments, activation=activation is not None)
    assert (
        error(array(pt.causal_conv1d_fn(x, weight, bias, activation=activation)).swapaxes(1, 2), exact)
        < TOLERANCES[dtype]
    )


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize(("state_len", "tokens"), [(3, 1), (3, 2), (4, 1), (5, 7)])
def test_conv_update(activation: str | None, state_len: int, tokens: int) -> None:
    x, state, weight = torch.randn(3, 5, tokens), torch.randn(3, 5, state_len), torch.randn(5, 4)
    held = array(state).swapaxes(1, 2)
    exact, _ = reference.conv(
        array(x).swapaxes(1, 2), array(weight), None, held[:, state_len - 3 :], activation=activation is not None
    )
    newest = np.concatenate([held, array(x).swapaxes(1, 2)], 1)[:, -state_len:]
    for layout in ("dim first", "dim last", "pool"):
        mine, indices = state.clone(), None
        if layout == "dim last":
            mine = state.transpose(1, 2).contiguous().transpose(1, 2)
        if layout == "pool":
            indices = torch.tensor([4, 0, 2], dtype=torch.int32)
            mine = torch.zeros(6, 5, state_len).index_copy_(0, indices.long(), state)
        y = pt.causal_conv1d_update(x, mine, weight, activation=activation, conv_state_indices=indices)
        assert error(array(y).swapaxes(1, 2), exact) < 1e-5
        mine = mine if indices is None else mine[indices.long()]
        assert np.array_equal(array(mine).swapaxes(1, 2), newest.astype(np.float32))
    if tokens == 1:
        assert torch.equal(pt.causal_conv1d_update(x[..., 0], state.clone(), weight, activation=activation), y[..., 0])


def test_conv_refuses() -> None:
    x, weight = torch.randn(1, 4, 3), torch.randn(4, 4)
    for options, kind, text in [
        ({"seq_idx": torch.zeros(1, 3)}, pyquern.UnsupportedError, "seq_idx"),
        ({"activation": "relu"}, pyquern.UnsupportedError, "activation"),
        ({"initial_states": torch.zeros(1, 4, 4)}, pyquern.InvalidError, "initial_states"),
        ({"bias": torch.zeros(3)}, pyquern.InvalidError, "bias"),
    ]:
        with pytest.raises(kind, match=text):
            pt.causal_conv1d_fn(x, weight, **options)
    with pytest.raises(pyquern.UnsupportedError, match="cache_seqlens"):
        pt.causal_conv1d_update(x, torch.zeros(1, 4, 3), weight, cache_seqlens=torch.zeros(1))
    with pytest.raises(pyquern.InvalidError, match="conv_state"):
        pt.causal_conv1d_update(x, torch.zeros(1, 4, 2), weight)


def test_norms(dtype: Any) -> None:
    x, gate, weight = torch.randn(3, 2, 45).to(dtype), torch.randn(3, 2, 45).to(dtype), torch.randn(45)
    exact, z = array(x), array(gate)
    norm = exact / np.sqrt((exact**2).sum(-1, keepdims=True) + 1e-6)
    assert error(array(pt.l2_norm(x)), norm) < TOLERANCES[dtype]
    gated = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-5) * array(weight) * reference.silu(z)
    assert error(array(pt.gated_rms_norm(x, gate, weight, 1e-5)), gated) < TOLERANCES[dtype]
    plain = exact / np.sqrt((exact**2).mean(-1, keepdims=True) + 1e-6) * array(weight)
    assert error(array(pt.rms_norm(x, weight)), plain) < TOLERANCES[dtype]
    with pytest.raises(pyquern.InvalidError, match="weight: shape"):
        pt.gated_rms_norm(x, gate, weight[:44])
    with pytest.raises(pyquern.InvalidError, match="gate: shape"):
        pt.gated_rms_norm(x, gate[:1], weight)


# ---- Stages ----


@pytest.mark.parametrize("lengths", [None, [0, 1, 1, 70, 130]])
def test_stages(lengths: list[int] | None, dtype: Any) -> None:
    """The stages one by one give what the composed operator gives, gates computed inside them."""
    x = gdn_tensors(1, 130, 2, 4, 32, 48, dtype)
    x["q"], x["k"] = (torch.nn.functional.normalize(x[name].float(), dim=-1).to(dtype) for name in "qk")
    raw, logits = torch.randn(1, 130, 4), torch.randn(1, 130, 4)
    A_log, dt_bias = torch.randn(4), torch.randn(4)
    state = torch.randn(1 if lengths is None else 4, 4, 48, 32)
    cu_seqlens = None if lengths is None else torch.tensor(lengths)
    o, final = pt.chunk_gated_delta_rule(
        x["q"],
        x["k"],
        x["v"],
        raw,
        logits,
        initial_state=state,
        output_final_state=True,
        use_gate_in_kernel=True,
        A_log=A_log,
        dt_bias=dt_bias,
        use_beta_sigmoid_in_kernel=True,
        state_v_first=True,
        cu_seqlens=cu_seqlens,
    )
    options = {"cu_seqlens": cu_seqlens, "sigmoid_beta": True}
    gc = pt.gdn_cumsum(raw, cu_seqlens=cu_seqlens, gate_factor=-A_log.exp(), gate_bias=dt_bias)
    inverse = pt.gdn_tril_inverse(pt.gdn_kkt(x["k"], logits, gc, **options), cu_seqlens=cu_seqlens)
    w, u = pt.gdn_recompute_w_u(x["k"], x["v"], logits, gc, inverse, **options)
    h, v_new, final2 = pt.gdn_state_pass(x["k"], w, u, gc, state, cu_seqlens=cu_seqlens)
    o2 = pt.gdn_chunk_output(x["q"], x["k"], v_new, h, gc, cu_seqlens=cu_seqlens)
    assert o2.dtype == dtype and h.dtype == dtype and final2.dtype == torch.float32
    assert error(array(o2), array(o)) < TOLERANCES[dtype] and error(array(final2), array(final)) < TOLERANCES[dtype]


def test_stages_refuse() -> None:
    x = gdn_tensors(1, 9, 1, 2, 16, 16)
    for arguments, text in (
        ((x["k"], x["beta"], x["g"][:, :8]), "gc: shape .* expected tokens of 9"),
        ((x["k"], x["beta"][0], x["g"]), "beta: 2 dimensions"),
        ((x["k"][:, :0], x["beta"][:, :0], x["g"][:, :0]), "0 tokens"),
    ):
        with pytest.raises(pyquern.InvalidError, match=text):
            pt.gdn_kkt(*arguments)
    with pytest.raises(pyquern.InvalidError, match="inverse: shape"):
        pt.gdn_recompute_w_u(x["k"], x["v"], x["beta"], x["g"], torch.zeros(1, 9, 2, 63))
    with pytest.raises(pyquern.InvalidError, match="0 sequences"):
        pt.gdn_cumsum(x["g"], cu_seqlens=torch.zeros(1, dtype=torch.int64))


# ---- AURA ----


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_aura_codes(bits: int, dtype: Any) -> None:
    """Codes, scales and rows are those of pyquern.kernels."""
    rows = torch.randn(3, 5, 96).to(dtype)
    codec = kernels.AuraCodec(96, bits, 7)
    codes, scales = pt.aura_encode(rows, bits, 7)
    wanted_codes, wanted_scales = codec.encode(rows.float().numpy())
    assert np.array_equal(codes.numpy().view(np.uint32), wanted_codes) and np.array_equal(scales.numpy(), wanted_scales)
    decoded = pt.aura_decode(codes, scales, 96, bits, 7, True, torch.float32)
    assert np.array_equal(decoded.numpy(), codec.decode(wanted_codes, wanted_scales))
    assert error(array(decoded), array(rows)) < {2: 0.4, 4: 0.12, 8: 0.02}[bits]
    assert torch.equal(pt.aura_decode(codes, scales, 96, bits, 7, True, dtype), decoded.to(dtype))
    every_second = torch.stack([rows, rows], -2)[..., 0, :]
    assert torch.equal(pt.aura_encode(every_second, bits, 7)[0], codes)


def test_aura_cache(dtype: Any) -> None:
    cache = pt.AuraCache(64, 2, 40, 8, 8, seed=3)
    keys, values, queries = (torch.randn(30, n, 64).to(dtype) for n in (2, 2, 4))
    order = torch.randperm(30)
    cache.store(keys[order], values[order], order)
    assert torch.equal(cache.key_codes[:, :30].transpose(0, 1), pt.aura_encode(keys, 8, 3)[0])
    sinks = torch.randn(4)
    arguments = (array(queries), array(keys).swapaxes(0, 1), array(values).swapaxes(0, 1))
    for positions, window, s in ((None, 0, None), (torch.arange(30), 0, sinks), (torch.arange(30).int(), 7, None)):
        out = cache.attention(queries, 30, positions=positions, window=window, sinks=s)
        at = None if positions is None else positions.numpy()
        exact = reference.attention(*arguments, 64**-0.5, at, window, None if s is None else array(s))
        assert out.dtype == dtype and error(array(out), exact) < 0.02
    for refused, text in (
        ({"queries": queries[..., :32], "n_keys": 1}, "queries: shape"),
        ({"queries": queries, "n_keys": 1, "window": 3}, "window"),
        ({"queries": queries, "n_keys": 1, "positions": order[:3]}, "positions"),
        ({"queries": queries, "n_keys": 41}, "n_keys"),
    ):
        with pytest.raises(pyquern.InvalidError, match=text):
            cache.attention(**refused)
    with pytest.raises(pyquern.InvalidError, match="keys: shape"):
        cache.store(keys[:3], values, order)
    with pytest.raises(pyquern.InvalidError):
        cache.store(keys, values, order + 20)
    with pytest.raises(pyquern.InvalidError, match="dim"):
        pt.AuraCache(65, 1, 1)


# ---- Compilers ----


def samples() -> list[tuple[str, tuple[Any, ...]]]:
    """Arguments of every operator."""
    tensors, ragged = gdn_tensors(2, 9, 1, 2, 16, 24), gdn_tensors(1, 9, 1, 2, 16, 24)
    state = torch.randn(2, 2, 16, 24)
    lengths = torch.tensor([0, 4, 9])
    found = []
    for name in ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"):
        found += [
            (name, (*tensors.values(), None, None, None, None, 0.5, True, False, False, False, 0)),
            (name, (*tensors.values(), state, None, None, None, 0.5, True, False, True, False, 0)),
            (name, (*ragged.values(), state.transpose(-1, -2), lengths, None, None, 0.5, False, False, True, True, 16)),
        ]
    rounded = gdn_tensors(1, 9, 1, 2, 16, 24, torch.bfloat16)
    found.append(
        ("chunk_gated_delta_rule", (*rounded.values(), None, None, None, None, 0.5, True, False, True, False, 0))
    )
    x, weight, bias, states = torch.randn(2, 9, 5), torch.randn(5, 4), torch.randn(5), torch.randn(2, 3, 5)
    return [
        *found,
        ("causal_conv1d", (x, weight, bias, states, True, True)),
        ("causal_conv1d", (x, weight, None, None, True, False)),
        ("causal_conv1d_step", (x[:, 0], states, weight, bias, None, True)),
        ("causal_conv1d_step", (x[:, 0], states.repeat(2, 1, 1), weight, bias, torch.tensor([2, 0]), True)),
        ("l2_norm", (x, 1e-6)),
        ("rms_norm", (x, bias, 1e-6)),
        ("gated_rms_norm", (x, x, bias, 1e-6)),
        (
            "quantized_matmul",
            (torch.randn(3, 128), torch.zeros(4, 18, dtype=torch.uint8), bias[:4], None, "q1_0", 4, 0),
        ),
        *aura_samples(),
        *stage_samples(),
    ]


def aura_samples() -> list[tuple[str, tuple[Any, ...]]]:
    cache = pt.AuraCache(64, 2, 8, 4, 3)
    arrays = (cache.key_codes, cache.value_codes, cache.key_scales, cache.value_scales, 4, 3, 0)
    rows, positions = torch.randn(3, 2, 64), torch.tensor([0, 1, 2])
    codes, scales = pt.aura_encode(rows, 4, 0)
    return [
        ("aura_encode", (rows, 4, 0)),
        ("aura_decode", (codes, scales, 64, 4, 0, True, torch.bfloat16)),
        ("aura_store", (rows, rows, positions, *arrays)),
        ("aura_attention", (rows, positions, None, *arrays, 3, 0.1, 0)),
    ]


def stage_samples() -> list[tuple[str, tuple[Any, ...]]]:
    """Arguments of each stage, once without and once with cumulative lengths."""
    found: list[tuple[str, tuple[Any, ...]]] = []
    for lengths in (None, torch.tensor([0, 4, 70])):
        x = gdn_tensors(1, 70, 1, 2, 16, 32)
        options = (lengths, None, None, 0.5, False)
        gc = pt.gdn_cumsum(x["g"], cu_seqlens=lengths)
        a = pt.gdn_kkt(x["k"], x["beta"], gc, cu_seqlens=lengths)
        inverse = pt.gdn_tril_inverse(a, cu_seqlens=lengths)
        w, u = pt.gdn_recompute_w_u(x["k"], x["v"], x["beta"], gc, inverse, cu_seqlens=lengths)
        h, v_new, _ = pt.gdn_state_pass(x["k"], w, u, gc, None, cu_seqlens=lengths)
        arguments = {
            "gdn_cumsum": (x["g"],),
            "gdn_kkt": (x["k"], x["beta"], gc),
            "gdn_tril_inverse": (a,),
            "gdn_recompute_w_u": (x["k"], x["v"], x["beta"], gc, inverse),
            "gdn_state_pass": (x["k"], w, u, gc, None),
            "gdn_chunk_output": (x["q"], x["k"], v_new, h, gc),
        }
        found += [(name, (*tensors, *options)) for name, tensors in arguments.items()]
    return found


@pytest.mark.parametrize("index", range(len(samples())), ids=[name for name, _ in samples()])
def test_opcheck(index: int) -> None:
    name, arguments = samples()[index]
    torch.library.opcheck(getattr(torch.ops.pyquern, name).default, arguments)


class Layer(torch.nn.Module):
    """Everything that a layer uses, so that compilers see it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = torch.nn.Parameter(torch.randn(64, 4)), torch.nn.Parameter(torch.randn(16))
        self.A_log, self.dt_bias = torch.nn.Parameter(torch.randn(2)), torch.nn.Parameter(torch.randn(2))
        self.requires_grad_(False)

    def forward(self, x: Any, conv_state: Any) -> Any:
        x = pt.causal_conv1d_fn(x.transpose(1, 2), self.weight, activation="silu").transpose(1, 2)
        last = pt.causal_conv1d_update(x[:, -1], conv_state, self.weight, activation="silu")
        q, k, v = (part.unflatten(-1, (-1, 16)) for part in x.split([16, 16, 32], -1))
        arguments = {"g": v[..., 0], "beta": v[..., 1], "use_qk_l2norm_in_kernel": True, "output_final_state": True}
        gates = {
            "use_gate_in_kernel": True,
            "A_log": self.A_log,
            "dt_bias": self.dt_bias,
            "use_beta_sigmoid_in_kernel": True,
        }
        o, state = pt.chunk_gated_delta_rule(q, k, v, **arguments, **gates)
        o2, state = pt.fused_recurrent_gated_delta_rule(q, k, v, **arguments, **gates, initial_state=state)
        return pt.gated_rms_norm(o, pt.l2_norm(o2), self.norm), state, last


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(dynamic: bool, backend: str) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("inductor needs a C++ compiler")
    torch.compiler.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend=backend)
    for tokens in (5, 6) if dynamic else (5,):
        x, state = torch.randn(2, tokens, 64), torch.randn(2, 64, 3)
        state2 = state.clone()
        for found, wanted in zip(compiled(x, state), layer(x, state2)):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert torch.equal(state, state2)


def test_export() -> None:
    layer = Layer()
    tokens = torch.export.Dim("tokens", min=2, max=100)
    arguments = (torch.randn(2, 7, 64), torch.randn(2, 64, 3))
    program = torch.export.export(layer, arguments, dynamic_shapes=({1: tokens}, {}))
    x, state = torch.randn(2, 33, 64), torch.randn(2, 64, 3)
    for found, wanted in zip(program.module()(x, state.clone()), layer(x, state.clone())):
        torch.testing.assert_close(found, wanted)


def test_threads() -> None:
    tensors = gdn_tensors(1, 100, 2, 4, 32, 32)
    wanted = [operator(**tensors)[0] for operator in OPERATORS]
    same: list[bool] = []

    def work() -> None:
        for _ in range(5):
            same.extend(torch.equal(operator(**tensors)[0], o) for operator, o in zip(OPERATORS, wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert same == [True] * 40
