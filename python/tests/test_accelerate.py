"""accelerate() on small random models of transformers: the same logits and text as without it."""

from __future__ import annotations

from typing import Any

import pytest

import pyquern

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from pyquern.torch import accelerate

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": None,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
MODELS = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", MOE),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {}),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", MOE),
}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    with torch.device(request.param):
        yield request.param


@pytest.fixture(params=list(MODELS))
def model(request: pytest.FixtureRequest, device: str) -> Any:
    config, kind, options = MODELS[request.param]
    if not hasattr(transformers, kind):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    torch.manual_seed(20261122)
    made = getattr(transformers, kind)(getattr(transformers, config)(**SIZES, **options)).eval()
    for parameter in made.parameters():  # initial weights are too small for a layer to show in the logits
        if parameter.dim() >= 2:
            parameter.data *= 5
    return made


def generated(model: Any, tokens: Any, **options: Any) -> Any:
    out = model.generate(
        tokens, max_new_tokens=12, do_sample=False, return_dict_in_generate=True, output_logits=True, **options
    )
    return torch.stack(out.logits), out.sequences


def test_logits_and_text_are_the_same(model: Any) -> None:
    tokens = torch.randint(1, 64, (2, 70))
    mask = torch.ones_like(tokens)
    mask[0, :9] = 0  # padding at the left
    with torch.no_grad():
        wanted, wanted_text = generated(model, tokens, attention_mask=mask)
        whole = model(tokens, use_cache=False).logits
        with accelerate(model) as acceleration:
            assert len(acceleration.layers) == 3
            logits, text = generated(model, tokens, attention_mask=mask)
            torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=1e-3)
            assert torch.equal(text, wanted_text)
            torch.testing.assert_close(model(tokens, use_cache=False).logits, whole, rtol=1e-3, atol=1e-3)
            assert not torch.equal(logits, wanted)  # the layers have changed
        assert torch.equal(generated(model, tokens, attention_mask=mask)[0], wanted)


def test_prompt_in_pieces(model: Any) -> None:
    tokens = torch.randint(1, 64, (1, 40))
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        with accelerate(model):
            cache, pieces = None, []
            for piece in tokens.split([17, 1, 22], 1):
                out = model(piece, past_key_values=cache, use_cache=True)
                cache, pieces = out.past_key_values, [*pieces, out.logits]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-3, atol=1e-3)


def test_recorded_inputs(model: Any) -> None:
    """A cache that records keeps all inputs of the convolution until it is truncated."""
    if not hasattr(transformers.Cache, "activate_past_recording"):
        pytest.skip(f"caches of transformers {transformers.__version__} do not record")
    tokens = torch.randint(1, 64, (1, 12))

    def recorded() -> tuple[Any, list[Any]]:
        cache = transformers.DynamicCache(config=model.config)
        model(tokens[:, :10], past_key_values=cache)
        cache.activate_past_recording()
        for i in (10, 11):
            out = model(tokens[:, i : i + 1], past_key_values=cache)
        return out.logits, [layer.conv_states[0] for layer in cache.layers if hasattr(layer, "conv_states")]

    with torch.no_grad():
        wanted, wanted_states = recorded()
        with accelerate(model):
            logits, states = recorded()
    torch.testing.assert_close(logits, wanted, rtol=1e-3, atol=1e-3)
    assert len(states) == 3
    for state, wanted_state in zip(states, wanted_states):
        torch.testing.assert_close(state, wanted_state, rtol=1e-3, atol=1e-3)


def test_compiles(model: Any) -> None:
    tokens = torch.randint(1, 64, (1, 20))
    torch.compiler.reset()
    layer = next(module for module in model.modules() if type(module).__name__.endswith("GatedDeltaNet"))
    x = torch.randn(1, 20, 32)
    with torch.no_grad(), accelerate(model):
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), layer(x))
        assert model(tokens).logits.shape == (1, 20, 64)


def test_refuses(model: Any) -> None:
    with pytest.raises(pyquern.InvalidError, match="Linear: no layer among"):
        accelerate(torch.nn.Linear(2, 2))
    acceleration = accelerate(model)
    with pytest.raises(pyquern.InvalidError, match="replaced before"):
        accelerate(model)
    with pytest.raises(RuntimeError, match="no backward"):
        model(torch.ones(1, 3, dtype=torch.int64))
    acceleration.undo()
    acceleration.undo()
    model(torch.ones(1, 3, dtype=torch.int64)).logits.sum().backward()
