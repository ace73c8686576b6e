"""The golden models of architecture qwen35: shapes, files, and the same models in Hugging Face transformers.

make_golden_models.py makes them. A file's tensors are drawn as they are stored; what transformers gets is computed from them, a
converter's work backwards: rotated matrices are turned back, norm weights lose their 1, value heads go from tiled to grouped order.

Needs numpy; torch and transformers for the plain types.

SPDX-License-Identifier: Apache-2.0
"""
import numpy as np

import ggufio
import hadamard

N_CTX = 512
TAPS = 4

# Three and two value heads a key head, so that tiled and grouped order differ; keys wider and narrower than values; partial rope;
# attention every third or fourth layer, or where a list says; a block of multi-token prediction.
PLAIN = dict(recurrent=[1, 1, 1, 0], mtp=0, hidden=48, ff=80, heads=4, kv=2, head_dim=32, n_rot=16, n_k=2, n_v=4, head_k=32,
             head_v=48, tied=False, base=1e7, eps=1e-6, interval=4)
MTP = dict(recurrent=[1, 0, 1], mtp=1, hidden=48, ff=64, heads=2, kv=1, head_dim=48, n_rot=24, n_k=2, n_v=6, head_k=48,
           head_v=16, tied=True, base=1e5, eps=1e-6)
ROTATED = dict(recurrent=[1, 1, 0], mtp=0, hidden=64, ff=64, heads=2, kv=2, head_dim=64, n_rot=16, n_k=2, n_v=6, head_k=32,
               head_v=32, tied=True, base=1e6, eps=1e-6, interval=3,
               rotation=dict(block=32, signs=np.dtype("i4"), grouped=True))
# Blocks of multi-token prediction beside rotated weights: one that is not rotated, as that of another file, and one that is, with
# tables of its own and without a norm of its own. Their trunks are as those that transformers has checked.
MTP_GRAFTED = dict(ROTATED, mtp=1, float64=True)
MTP_OWN = dict(MTP_GRAFTED, own=True, tied=False, recurrent=[1, 0], interval=2,
               rotation=dict(ROTATED["rotation"], block=64, mtp=True))
# YaRN over a part of a head.
YARN = dict(recurrent=[1, 0], mtp=0, hidden=48, ff=64, heads=2, kv=1, head_dim=48, n_rot=24, n_k=2, n_v=2, head_k=32, head_v=16,
            tied=True, base=1e4, eps=1e-6, interval=2,
            scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32))
# Widths of low-bit matrices are multiples of the block of 128.
LOW = dict(recurrent=[1, 1, 1, 0], mtp=0, hidden=128, ff=128, heads=2, kv=1, head_dim=64, n_rot=16, n_k=2, n_v=4, head_k=32,
           head_v=32, tied=False, base=1e7, eps=1e-6, interval=4)
LOW_TIED = dict(LOW, recurrent=[1, 1, 0], interval=3, n_k=2, n_v=4, head_k=48, tied=True)


def rotated(shape, **rotation):
    return dict(shape, rotation=rotation)


MODELS = {
    "qwen35.f16": (PLAIN, "f16"),
    "qwen35-mtp.bf16": (MTP, "bf16"),
    "qwen35-rotated.f16": (ROTATED, "f16"),
    "qwen35-mtp-grafted.f16": (MTP_GRAFTED, "f16"),
    "qwen35-mtp-own.f16": (MTP_OWN, "f16"),
    "qwen35-yarn.f16": (YARN, "f16"),
    "qwen35.q1_0": (LOW, "q1_0"),
    "qwen35.q2_0": (LOW_TIED, "q2_0"),
    "qwen35.pq2_0": (LOW, "pq2_0"),
    "qwen35.ptq1_0": (LOW_TIED, "ptq1_0"),
    # All kinds of number that signs are stored as, or none: sign_mode "identity".
    "qwen35-rotated.q1_0": (rotated(LOW, block=128, signs=np.dtype("i4"), grouped=True), "q1_0"),
    "qwen35-rotated.q2_0": (rotated(LOW_TIED, block=64, signs=None, grouped=True), "q2_0"),
    "qwen35-rotated.pq2_0": (rotated(LOW, block=32, signs=np.dtype("f4"), grouped=False), "pq2_0"),
    "qwen35-rotated.ptq1_0": (rotated(LOW_TIED, block=128, signs=np.dtype("i1"), grouped=True), "ptq1_0"),
}


def qkv_widths(shape):
    return shape["n_k"] * shape["head_k"], shape["n_v"] * shape["head_v"]


def attention_tensors(shape, block):
    """GGUF name, transformers' name inside the layer, shape."""
    e, dim = shape["hidden"], shape["head_dim"]
    yield block + "attn_q.weight", "self_attn.q_proj.weight", (shape["heads"] * dim * 2, e)
    yield block + "attn_k.weight", "self_attn.k_proj.weight", (shape["kv"] * dim, e)
    yield block + "attn_v.weight", "self_attn.v_proj.weight", (shape["kv"] * dim, e)
    yield block + "attn_output.weight", "self_attn.o_proj.weight", (e, shape["heads"] * dim)
    yield block + "attn_q_norm.weight", "self_attn.q_norm.weight", (dim,)
    yield block + "attn_k_norm.weight", "self_attn.k_norm.weight", (dim,)


def recurrent_tensors(shape, block):
    e, (k, v) = shape["hidden"], qkv_widths(shape)
    yield block + "attn_qkv.weight", "linear_attn.in_proj_qkv.weight", (2 * k + v, e)
    yield block + "attn_gate.weight", "linear_attn.in_proj_z.weight", (v, e)
    yield block + "ssm_conv1d.weight", "linear_attn.conv1d.weight", (2 * k + v, TAPS)
    yield block + "ssm_dt.bias", "linear_attn.dt_bias", (shape["n_v"],)
    yield block + "ssm_a", "linear_attn.A_log", (shape["n_v"],)
    yield block + "ssm_beta.weight", "linear_attn.in_proj_b.weight", (shape["n_v"], e)
    yield block + "ssm_alpha.weight", "linear_attn.in_proj_a.weight", (shape["n_v"], e)
    yield block + "ssm_norm.weight", "linear_attn.norm.weight", (shape["head_v"],)
    yield block + "ssm_out.weight", "linear_attn.out_proj.weight", (e, v)


def tensor_shapes(shape):
    """GGUF name, transformers' name or None, shape. Matrices are [n_out, n_in]."""
    e, ff, n_vocab = shape["hidden"], shape["ff"], shape["vocab"]
    yield "token_embd.weight", "model.embed_tokens.weight", (n_vocab, e)
    yield "output_norm.weight", "model.norm.weight", (e,)
    if not shape["tied"]:
        yield "output.weight", "lm_head.weight", (n_vocab, e)
    for i, recurrent in enumerate(shape["recurrent"] + [0] * shape["mtp"]):
        block, layer = f"blk.{i}.", f"model.layers.{i}." if i < len(shape["recurrent"]) else None
        inside = [(block + "attn_norm.weight", "input_layernorm.weight", (e,)),
                  *(recurrent_tensors if recurrent else attention_tensors)(shape, block),
                  (block + "post_attention_norm.weight", "post_attention_layernorm.weight", (e,)),
                  (block + "ffn_gate.weight", "mlp.gate_proj.weight", (ff, e)),
                  (block + "ffn_up.weight", "mlp.up_proj.weight", (ff, e)),
                  (block + "ffn_down.weight", "mlp.down_proj.weight", (e, ff))]
        for name, hf_name, dims in inside:
            yield name, layer and layer + hf_name, dims
        if layer is None:
            yield block + "nextn.eh_proj.weight", None, (e, 2 * e)
            for norm in ("enorm", "hnorm") if shape.get("own") else ("enorm", "hnorm", "shared_head_norm"):
                yield f"{block}nextn.{norm}.weight", None, (e,)
            for table in ("embed_tokens", "shared_head_head") if shape.get("own") else ():
                yield f"{block}nextn.{table}.weight", None, (n_vocab, e)


def rotation_keys(shape, rng):
    """Every matrix is rotated but the gates of the recurrence; the embedding is, too. The block of multi-token prediction is if
    `mtp` says so, but for its own embedding."""
    r = shape["rotation"]
    plain = ["token_embd", "conv1d", "ssm_alpha", "ssm_beta", "embed_tokens"]
    if not r.get("mtp"):
        plain.append(f"blk.{len(shape['recurrent'])}.")
    names = {name: dims[1] for name, _, dims in tensor_shapes(shape) if len(dims) == 2 and not any(p in name for p in plain)}
    widths = sorted({*names.values(), shape["hidden"]})
    keys = {
        "version": 2 if shape["tied"] else 1,
        "block_size": r["block"],
        "transform": hadamard.TRANSFORM,
        "axis": hadamard.AXIS,
        "sign_mode": "identity" if r["signs"] is None else "explicit",
        "weight_names": list(names),
        "inverse_weight_names": ["token_embd.weight"],
        "gdn_v_grouped": r["grouped"],
    }
    if shape["tied"]:
        keys["tied_output"] = True
    if r["signs"] is not None:
        keys["sign_widths"] = np.array(widths, "i4")
        keys["sign_values"] = (rng.integers(0, 2, sum(widths)) * 2 - 1).astype(r["signs"])
    return {hadamard.PREFIX + key: value for key, value in keys.items()}


def keys_of(shape, name, rng):
    pairs = shape["n_rot"] // 2
    sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0]
    own = {
        "block_count": len(shape["recurrent"]) + shape["mtp"],
        "context_length": N_CTX,
        "embedding_length": shape["hidden"],
        "feed_forward_length": shape["ff"],
        "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv"],
        "attention.key_length": shape["head_dim"],
        "attention.value_length": shape["head_dim"],
        "attention.layer_norm_rms_epsilon": shape["eps"],
        "rope.freq_base": shape["base"],
        "rope.dimension_count": shape["n_rot"],
        "rope.dimension_sections": np.array(sections, "i4"),
        "ssm.conv_kernel": TAPS,
        "ssm.inner_size": shape["n_v"] * shape["head_v"],
        "ssm.state_size": shape["head_k"],
        "ssm.time_step_rank": shape["n_v"],
        "ssm.group_count": shape["n_k"],
        "vocab_size": shape["vocab"],
    }
    if shape["mtp"]:
        own["nextn_predict_layers"] = shape["mtp"]
    if "interval" in shape:
        own["full_attention_interval"] = shape["interval"]
    else:
        own["attention.recurrent_layers"] = np.array(shape["recurrent"] + [0] * shape["mtp"], bool)
    return {
        "general.architecture": "qwen35",
        "general.name": f"golden {name}",
        **{f"qwen35.{key}": value for key, value in own.items()},
        "tokenizer.ggml.model": "no_vocab",
        **(rotation_keys(shape, rng) if "rotation" in shape else {}),
    }


def draw_values(name, dims, rng):
    """Values of a tensor that no type rounds below f16. Decay times of heads reach from less than a token to hundreds, in every
    layer; gates use all of their range, hence alpha's and beta's larger weights."""
    if name.endswith("ssm_a"):
        return -np.exp(rng.permutation(np.linspace(-5.0, 2.5, dims[0])))
    if name.endswith("ssm_dt.bias"):
        return rng.uniform(-3.0, 1.0, dims)
    if name.endswith("ssm_conv1d.weight"):
        return rng.standard_normal(dims) / np.sqrt(TAPS)
    if len(dims) == 1:
        return rng.uniform(0.5, 1.5, dims)
    wide = 2.0 if name.endswith(("ssm_alpha.weight", "ssm_beta.weight")) else 1.0
    return rng.standard_normal(dims) * wide / np.sqrt(dims[1])


def draw(shape, type_name, rng):
    """The file's tensors."""
    tensors = []
    for name, _, dims in tensor_shapes(shape):
        kind = type_name
        if len(dims) == 1 or name.endswith("ssm_conv1d.weight"):
            kind = "f32"
        elif "rotation" in shape and name.endswith(("ssm_alpha.weight", "ssm_beta.weight")):
            kind = "f16"
        if kind in ("f32", "f16", "bf16"):
            data = ggufio.encode_plain(kind, draw_values(name, dims, rng))
        else:
            data = ggufio.random_blocks(kind, *dims, rng)
        tensors.append(ggufio.Tensor(name, dims, kind, data))
    return tensors


def grouped(shape, name, w):
    """Value heads in transformers' order: those that share a key head stand together."""
    n_k, n_v, (k, _) = shape["n_k"], shape["n_v"], qkv_widths(shape)
    if name.endswith("ssm_out.weight"):
        return hadamard.tiled_to_grouped(w, n_k, n_v)
    if name.endswith(("attn_gate.weight", "ssm_beta.weight", "ssm_alpha.weight", "ssm_dt.bias", "ssm_a")):
        return hadamard.tiled_to_grouped(w.T, n_k, n_v).T
    if name.endswith(("attn_qkv.weight", "ssm_conv1d.weight")):
        return np.concatenate([w[:2 * k], hadamard.tiled_to_grouped(w[2 * k:].T, n_k, n_v).T])
    return w


def transformers_state(shape, keys, tensors):
    """The file's tensors under transformers' names, as it has them."""
    rotation, state = hadamard.Rotation(keys), {}
    decoded = {t.name: t.decode() for t in tensors}
    for name, hf_name, dims in tensor_shapes(shape):
        if hf_name is None:
            continue
        w = rotation.rows(name, decoded[name]) if name == "token_embd.weight" else rotation.plain(name, decoded[name])
        w = grouped(shape, name, w)
        if name.endswith("ssm_a"):
            w = np.log(-w)
        elif name.endswith("norm.weight") and not name.endswith("ssm_norm.weight"):
            w = w - 1.0
        elif name.endswith("ssm_conv1d.weight"):
            w = w[:, None, :]
        state[hf_name] = np.ascontiguousarray(w, np.float32)
    return state


def transformers_model(shape, state):
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    kinds = ["linear_attention" if recurrent else "full_attention" for recurrent in shape["recurrent"]]
    rope = dict(shape.get("scaling", {"rope_type": "default"}), rope_theta=shape["base"],
                partial_rotary_factor=shape["n_rot"] / shape["head_dim"])
    config = Qwen3_5TextConfig(vocab_size=shape["vocab"], hidden_size=shape["hidden"], intermediate_size=shape["ff"],
                               num_hidden_layers=len(kinds), layer_types=kinds, num_attention_heads=shape["heads"],
                               num_key_value_heads=shape["kv"], head_dim=shape["head_dim"], rms_norm_eps=shape["eps"],
                               max_position_embeddings=N_CTX, tie_word_embeddings=shape["tied"], rope_parameters=rope,
                               linear_conv_kernel_dim=TAPS, linear_num_key_heads=shape["n_k"],
                               linear_num_value_heads=shape["n_v"], linear_key_head_dim=shape["head_k"],
                               linear_value_head_dim=shape["head_v"], attn_implementation="eager")
    model = Qwen3_5ForCausalLM(config).float().eval()
    state = {name: torch.from_numpy(w) for name, w in state.items()}
    if shape["tied"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model
