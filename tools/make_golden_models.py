#!/usr/bin/env python3
"""Make the golden models of tests/golden: small random models with the logits that they must give.

usage: make_golden_models.py OUT_FOLDER          all of them, and a table of what was made
       make_golden_models.py OUT_FOLDER NAME...  only these

For NAME it writes NAME.gguf, NAME.ids (token ids, one a line) and NAME.logits.f32 (raw little-endian f32 [n_ids, n_vocab]). With a
block of multi-token prediction also NAME.drafts.f32 [lengths, N_DRAFTED, n_vocab]: logits of chains of tokens by reference_logits.py,
after so many ids as DRAFT_LENGTHS has, and one.

Plain types (f32, f16, bf16): weights are drawn, rounded to the type, and given both to the file and, in float32, to Hugging Face
transformers, whose logits with eager attention are the golden ones; tools/reference_logits.py must agree with them, or nothing is
written. Low-bit types: random codes, and the golden logits are reference_logits.py's in float64; transformers has no such types.

Needs numpy, and torch and transformers for the plain types. The same numpy version gives the same files.

SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import numpy as np

import ggufio
import golden_qwen35
import reference_logits

N_IDS = 48
N_VOCAB = 320
# Gated DeltaNet: three whole chunks of 64 tokens and a part of one. Fewer words, so that the logits of all of them stay small.
N_IDS_QWEN35 = 203
N_VOCAB_QWEN35 = 72
N_CTX = 256
# Contexts before chains of the block of multi-token prediction: the first row that has one, ends of pages, the open page.
DRAFT_LENGTHS = 1, 2, 63, 64, 130, 198
N_DRAFTED = 4
# Scaled positions: the context of the training is left far behind.
N_IDS_SCALED = 160
N_VOCAB_SCALED = 72
# float32 against float64 on these sizes differs by some 1e-6; a wrong pair of rope or a wrong head by more than 1e-1.
MAX_DISAGREEMENT = 1e-5

# Shapes are awkward on purpose: head_dim * heads is not hidden, groups of 1, 2 and 3 heads, a feed-forward width that no power of
# two divides far, more than one layer, both kinds of output. Low-bit widths are multiples of the block of 128.
LLAMA = dict(arch="llama", layers=2, hidden=128, ff=224, heads=4, kv=2, head_dim=32, tied=False, base=50000.0, eps=1e-5)
LLAMA3 = dict(arch="llama", layers=2, hidden=96, ff=224, heads=3, kv=1, head_dim=32, tied=True, base=500000.0, eps=1e-5,
              rope=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64))
QWEN3 = dict(arch="qwen3", layers=2, hidden=96, ff=192, heads=3, kv=3, head_dim=64, tied=True, base=200000.0, eps=1e-6)
QWEN3_UNTIED = dict(arch="qwen3", layers=2, hidden=64, ff=96, heads=4, kv=2, head_dim=48, tied=False, base=1e6, eps=1e-6)
SCALED = dict(layers=2, vocab=N_VOCAB_SCALED, ids=N_IDS_SCALED)
QWEN3_YARN = dict(SCALED, arch="qwen3", hidden=64, ff=64, heads=2, kv=1, head_dim=48, tied=True, base=10000.0, eps=1e-6,
                  scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32))
QWEN3_LINEAR = dict(QWEN3_YARN, scaling=dict(rope_type="linear", factor=4.0))
# All that a configuration can say of YaRN and that GGUF has a key for: a ramp that begins after the first pairs and is long.
LLAMA_YARN = dict(SCALED, arch="llama", hidden=64, ff=64, heads=2, kv=2, head_dim=32, tied=False, base=300.0, eps=1e-5,
                  scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=3.0, beta_slow=0.25,
                               attention_factor=1.3))
LLAMA_LINEAR = dict(LLAMA_YARN, scaling=dict(rope_type="linear", factor=2.5))
QWEN2 = dict(arch="qwen2", layers=2, vocab=96, hidden=96, ff=112, heads=3, kv=1, head_dim=32, tied=False, base=1e6, eps=1e-6)
QWEN2_LOW = dict(arch="qwen2", layers=2, vocab=96, hidden=256, ff=256, heads=4, kv=1, head_dim=64, tied=True, base=1e6, eps=1e-6)
LLAMA_LOW = dict(arch="llama", layers=3, hidden=256, ff=384, heads=4, kv=2, head_dim=64, tied=False, base=50000.0, eps=1e-5)
QWEN3_LOW = dict(arch="qwen3", layers=3, hidden=256, ff=384, heads=2, kv=1, head_dim=128, tied=True, base=1e6, eps=1e-6)
# Of the types with blocks of 256, whose rows are that wide at least.
LLAMA_WIDE = dict(arch="llama", layers=2, vocab=96, hidden=256, ff=256, heads=4, kv=1, head_dim=64, tied=True, base=50000.0, eps=1e-5)
QWEN3_WIDE = dict(LLAMA_WIDE, arch="qwen3", layers=1, heads=2, head_dim=128)

MODELS = {
    "llama.f16": (LLAMA, "f16"),
    "llama3-rope.bf16": (LLAMA3, "bf16"),
    "qwen3.f16": (QWEN3, "f16"),
    "qwen3-untied.f32": (QWEN3_UNTIED, "f32"),
    "qwen3-yarn.f16": (QWEN3_YARN, "f16"),
    "qwen3-linear.f16": (QWEN3_LINEAR, "f16"),
    "llama-yarn.bf16": (LLAMA_YARN, "bf16"),
    "llama-linear.bf16": (LLAMA_LINEAR, "bf16"),
    "qwen2.f16": (QWEN2, "f16"),
    "qwen2.q1_0": (QWEN2_LOW, "q1_0"),
}
for low in ("q1_0", "q2_0", "pq2_0", "ptq1_0"):
    MODELS[f"llama.{low}"] = (LLAMA_LOW, low)
    MODELS[f"qwen3.{low}"] = (QWEN3_LOW, low)
MODELS["llama.q2_k"] = (LLAMA_WIDE, "q2_k")
MODELS["llama.q3_k"] = (LLAMA_WIDE, "q3_k")
MODELS["qwen3.iq4_nl"] = (QWEN3_WIDE, "iq4_nl")
MODELS["qwen3.iq4_xs"] = (QWEN3_WIDE, "iq4_xs")
MODELS["qwen3.mxfp4"] = (QWEN3_WIDE, "mxfp4")
MODELS["qwen3.nvfp4"] = (QWEN3_WIDE, "nvfp4")
for qwen35, (hybrid, kind) in golden_qwen35.MODELS.items():
    MODELS[qwen35] = (dict(hybrid, arch="qwen35", vocab=N_VOCAB_QWEN35, ids=N_IDS_QWEN35), kind)


# transformers' names of what scales positions, and GGUF's.
SCALING_KEYS = dict(rope_type="type", factor="factor", original_max_position_embeddings="original_context_length",
                    beta_fast="yarn_beta_fast", beta_slow="yarn_beta_slow", attention_factor="yarn_attn_factor")


def scaling_keys(shape):
    return {f"{shape['arch']}.rope.scaling.{SCALING_KEYS[key]}": value for key, value in shape.get("scaling", {}).items()}


def keys_of(shape, name):
    a = shape["arch"]
    keys = {
        "general.architecture": a,
        "general.name": f"golden {name}",
        f"{a}.block_count": shape["layers"],
        f"{a}.context_length": N_CTX,
        f"{a}.embedding_length": shape["hidden"],
        f"{a}.feed_forward_length": shape["ff"],
        f"{a}.attention.head_count": shape["heads"],
        f"{a}.attention.head_count_kv": shape["kv"],
        f"{a}.attention.key_length": shape["head_dim"],
        f"{a}.attention.value_length": shape["head_dim"],
        f"{a}.attention.layer_norm_rms_epsilon": shape["eps"],
        f"{a}.rope.freq_base": shape["base"],
        f"{a}.rope.dimension_count": shape["head_dim"],
        **scaling_keys(shape),
        f"{a}.vocab_size": shape.get("vocab", N_VOCAB),
        "tokenizer.ggml.model": "no_vocab",
    }
    if a == "qwen2":  # llama.cpp's converter writes no size of heads: they are hidden / heads wide
        for size in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            del keys[f"{a}.{size}"]
    return keys


def tensor_shapes(shape):
    """GGUF name, transformers' name, shape. Matrices are [n_out, n_in]."""
    e, ff, dim, n_vocab = shape["hidden"], shape["ff"], shape["head_dim"], shape.get("vocab", N_VOCAB)
    q, kv = shape["heads"] * dim, shape["kv"] * dim
    yield "token_embd.weight", "model.embed_tokens.weight", (n_vocab, e)
    yield "output_norm.weight", "model.norm.weight", (e,)
    if not shape["tied"]:
        yield "output.weight", "lm_head.weight", (n_vocab, e)
    for i in range(shape["layers"]):
        ours, theirs = f"blk.{i}.", f"model.layers.{i}."
        yield ours + "attn_norm.weight", theirs + "input_layernorm.weight", (e,)
        yield ours + "attn_q.weight", theirs + "self_attn.q_proj.weight", (q, e)
        yield ours + "attn_k.weight", theirs + "self_attn.k_proj.weight", (kv, e)
        yield ours + "attn_v.weight", theirs + "self_attn.v_proj.weight", (kv, e)
        yield ours + "attn_output.weight", theirs + "self_attn.o_proj.weight", (e, q)
        if shape["arch"] == "qwen2":
            yield ours + "attn_q.bias", theirs + "self_attn.q_proj.bias", (q,)
            yield ours + "attn_k.bias", theirs + "self_attn.k_proj.bias", (kv,)
            yield ours + "attn_v.bias", theirs + "self_attn.v_proj.bias", (kv,)
        if shape["arch"] == "qwen3":
            yield ours + "attn_q_norm.weight", theirs + "self_attn.q_norm.weight", (dim,)
            yield ours + "attn_k_norm.weight", theirs + "self_attn.k_norm.weight", (dim,)
        yield ours + "ffn_norm.weight", theirs + "post_attention_layernorm.weight", (e,)
        yield ours + "ffn_gate.weight", theirs + "mlp.gate_proj.weight", (ff, e)
        yield ours + "ffn_up.weight", theirs + "mlp.up_proj.weight", (ff, e)
        yield ours + "ffn_down.weight", theirs + "mlp.down_proj.weight", (e, ff)


def interleave(w, n_heads):
    """Rows of q or k from transformers' order (halves of a head turn together) to GGUF's (neighbours turn together)."""
    n_out = w.shape[0]
    return w.reshape(n_heads, 2, n_out // n_heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


def rope_freq_factors(shape):
    """Llama 3's rope scaling as the divisors that GGUF stores, one a pair (Llama 3.1's release notes give the rule)."""
    r = shape["rope"]
    frequency = shape["base"] ** (-np.arange(0, shape["head_dim"], 2) / shape["head_dim"])
    turns = r["original_max_position_embeddings"] * frequency / (2 * np.pi)
    smooth = (turns - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / r["factor"] + smooth)).astype(np.float32)


def draw_vector(name, dims, rng):
    """Biases are as large as what they are added to."""
    return (rng.standard_normal(dims) if name.endswith(".bias") else rng.uniform(0.5, 1.5, dims)).astype(np.float32)


def draw_plain(shape, type_name, rng):
    """Tensors for the file, and the same values under transformers' names."""
    tensors, state = [], {}
    for name, hf_name, dims in tensor_shapes(shape):
        if len(dims) == 1:
            kind, w = "f32", draw_vector(name, dims, rng)
        else:
            kind, w = type_name, (rng.standard_normal(dims) / np.sqrt(dims[1])).astype(np.float32)
        rounded = ggufio.decode(kind, ggufio.encode_plain(kind, w), dims).astype(np.float32)
        state[hf_name] = rounded
        if shape["arch"] == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            rounded = interleave(rounded, shape["heads"] if "attn_q" in name else shape["kv"])
        tensors.append(ggufio.Tensor(name, dims, kind, ggufio.encode_plain(kind, rounded)))
    if "rope" in shape:
        divisors = rope_freq_factors(shape)
        tensors.append(ggufio.Tensor("rope_freqs.weight", divisors.shape, "f32", ggufio.encode_plain("f32", divisors)))
    return tensors, state


def draw_low_bit(shape, type_name, rng):
    tensors = []
    for name, _, dims in tensor_shapes(shape):
        if len(dims) == 1:
            w = draw_vector(name, dims, rng)
            tensors.append(ggufio.Tensor(name, dims, "f32", ggufio.encode_plain("f32", w)))
        elif type_name == "nvfp4" and name == "token_embd.weight":  # as files of this type have it
            tensors.append(ggufio.Tensor(name, dims, "f16", ggufio.encode_plain("f16", rng.standard_normal(dims) / np.sqrt(dims[1]))))
        else:
            tensors.append(ggufio.Tensor(name, dims, type_name, ggufio.random_blocks(type_name, *dims, rng)))
            if type_name == "nvfp4":
                tensors += nvfp4_scales(name, dims, rng)
    return tensors


def nvfp4_scales(name, dims, rng):
    """The scale of a tensor, which makes the weights as large as those of the other types, and one of its inputs, which changes nothing
    where activations are not in that format."""
    spread = ("scale", 1 / np.sqrt(dims[1]) / 10), ("input_scale", 1.0)
    return [ggufio.Tensor(name.replace("weight", suffix), (1,), "f32",
                          ggufio.encode_plain("f32", np.array([scale * rng.uniform(0.5, 1.5)], np.float32))) for suffix, scale in spread]


def transformers_model(shape, state):
    """The same model in transformers, float32. state: tensors under transformers' names, in its order of rows."""
    if shape["arch"] == "qwen35":
        return golden_qwen35.transformers_model(shape, state)
    import torch
    import transformers as hf

    # A Qwen2Config has neither head_dim nor attention_bias: heads are hidden / heads wide and always have biases.
    config_class, model_class, heads = {
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, dict(head_dim=shape["head_dim"], attention_bias=False)),
        "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {}),
        "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, dict(head_dim=shape["head_dim"], attention_bias=False)),
    }[shape["arch"]]
    rope = {"rope_type": "llama3", **shape["rope"]} if "rope" in shape else shape.get("scaling", {"rope_type": "default"})
    config = config_class(vocab_size=shape.get("vocab", N_VOCAB), hidden_size=shape["hidden"], intermediate_size=shape["ff"],
                          num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
                          num_key_value_heads=shape["kv"], rms_norm_eps=shape["eps"],
                          max_position_embeddings=shape.get("ctx", N_CTX), tie_word_embeddings=shape["tied"],
                          rope_parameters={"rope_theta": shape["base"], **rope}, attn_implementation="eager", **heads)
    model = model_class(config).float().eval()
    state = {name: torch.from_numpy(w) for name, w in state.items()}
    if shape["tied"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def transformers_logits(shape, state, ids):
    import torch

    # One thread: the order of float additions, and so the golden files, must not depend on the machine's cores.
    torch.set_num_threads(1)
    model = transformers_model(shape, state)
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None]).logits[0].double().numpy()


def make(folder, name):
    shape, type_name = MODELS[name]
    # A seed of its own for each model: making one again does not depend on the others.
    rng = np.random.default_rng([ord(c) for c in name])
    ids = rng.integers(0, shape.get("vocab", N_VOCAB), shape.get("ids", N_IDS))
    plain = type_name in ("f32", "f16", "bf16")
    if shape["arch"] == "qwen35":
        keys, tensors = golden_qwen35.keys_of(shape, name, rng), golden_qwen35.draw(shape, type_name, rng)
        keys.update(scaling_keys(shape))
        state = golden_qwen35.transformers_state(shape, keys, tensors) if plain else None
    else:
        keys = keys_of(shape, name)
        tensors, state = draw_plain(shape, type_name, rng) if plain else (draw_low_bit(shape, type_name, rng), None)
    path = os.path.join(folder, name)
    ggufio.write(path + ".gguf", keys, tensors)
    model = reference_logits.Model(path + ".gguf")
    exact = golden = model.logits(ids)
    if shape.get("float64"):
        note = "float64"
    elif plain:
        golden = transformers_logits(shape, state, ids)
        difference = reference_logits.relative_error(golden, exact)
        if difference > MAX_DISAGREEMENT:
            os.remove(path + ".gguf")
            raise SystemExit(f"{name}: transformers and reference_logits.py differ by {difference:.1e}")
        note = f"transformers and float64 differ by {difference:.1e}"
    else:
        error = reference_logits.relative_error(model.logits(ids, reference_logits.Int8()), exact)
        note = f"int8 activations alone cost {error:.2e}"
    with open(path + ".ids", "w") as f:
        f.writelines(f"{i}\n" for i in ids)
    golden.astype("<f4").tofile(path + ".logits.f32")
    if shape.get("mtp"):
        drafts = np.array([model.drafts(ids, length, N_DRAFTED) for length in DRAFT_LENGTHS])
        drafts.astype("<f4").tofile(path + ".drafts.f32")
    print(f"{name:20} {os.path.getsize(path + '.gguf'):8} bytes, {note}")


def main():
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        raise SystemExit(__doc__)
    unknown = [name for name in sys.argv[2:] if name not in MODELS]
    if unknown:
        raise SystemExit(f"no golden model '{unknown[0]}'; there are: {' '.join(MODELS)}")
    for name in sys.argv[2:] or MODELS:
        make(sys.argv[1], name)


if __name__ == "__main__":
    main()
