#!/usr/bin/env python3
"""Make the seeds of tests/fuzz/fuzz_convert.c, fuzz_safetensors.c and fuzz_graft.c: the files of a checkpoint of a few weights, and headers.

usage: fuzz_corpus_convert.py tests/fuzz/corpus

In convert/ the first byte of a seed is the file that the rest stands for (FILES of fuzz_convert.c); 6 is a config.json, after its length in four
bytes, and a model.safetensors with packed matrices. The target makes its checkpoint from the seeds base_0 to base_3. In safetensors/ two bytes, the size of the data, come before the JSON text. In graft/ they are the files of a checkpoint with the MTP block of
tests/golden/qwen35-mtp.bf16.gguf. Needs nothing but Python.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "e2e"))
import pack_checkpoint

E, FF, DIM, VOCAB = 4, 4, 4, 8
REGEX = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CONFIG = dict(architectures=["Qwen3_5ForCausalLM"], vocab_size=VOCAB, hidden_size=E, intermediate_size=FF, num_hidden_layers=2,
              num_attention_heads=1, num_key_value_heads=1, head_dim=DIM, layer_types=["linear_attention", "full_attention"],
              linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=2, linear_value_head_dim=2,
              linear_conv_kernel_dim=2, tie_word_embeddings=True, mtp_num_hidden_layers=1, rms_norm_eps=1e-6,
              rope_parameters=dict(rope_type="yarn", factor=2.0, rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[1, 0, 0]),
              eos_token_id=1, hidden_act="silu")
LLAMA = dict(architectures=["LlamaForCausalLM"], vocab_size=VOCAB, hidden_size=E, intermediate_size=FF, num_hidden_layers=1,
             num_attention_heads=1, rope_theta=1e4, rope_scaling=dict(type="llama3", factor=8.0, original_max_position_embeddings=64))
TOKENIZER = dict(
    model=dict(type="BPE", vocab={c: i for i, c in enumerate("abcd")}, merges=[["a", "b"], "c d"]),
    added_tokens=[dict(id=4, content="<|end|>", special=True), dict(id=5, content="<think>", special=False)],
    normalizer=dict(type="NFC"), pre_tokenizer=dict(type="Sequence", pretokenizers=[
        dict(type="Split", pattern=dict(Regex=REGEX), behavior="Isolated", invert=False),
        dict(type="ByteLevel", add_prefix_space=False, use_regex=False)]),
    post_processor=dict(type="TemplateProcessing", single=[dict(SpecialToken=dict(id="<|end|>")), dict(Sequence=dict(id="A"))]))
SETTINGS = dict(bos_token="<|end|>", eos_token=dict(content="<|end|>"), add_eos_token=False, model_max_length=10**30,
                added_tokens_decoder={"6": dict(content="<|x|>", special=True)},
                chat_template=[dict(name="default", template="{{ x }}"), dict(name="tool use", template="{{ y }}")])
YARN = dict(CONFIG, rope_parameters=dict(rope_type="yarn", factor=4, rope_theta=1e4, partial_rotary_factor=0.5, truncate=False, mscale=0.7,
                                         mscale_all_dim=1, beta_fast=8, beta_slow=0.5, low_freq_factor=1))
FLAGS = dict(TOKENIZER, normalizer=dict(type="Sequence", normalizers=[]), decoder=dict(type="ByteLevel"),
             model=dict(TOKENIZER["model"], ignore_merges=True, dropout=0, unk_token=None),
             added_tokens=[dict(id=4, content="<|end|>", special=True, lstrip=True, normalized=True),
                           dict(id=5, content="<think>", special=False, rstrip=True, single_word=False)])
GENERATION = dict(top_k=20, top_p=0.9, temperature=1, eos_token_id=[1, 2])


def attention(layer):
    yield layer + "self_attn.q_proj.weight", (2 * DIM, E)
    yield layer + "self_attn.k_proj.weight", (DIM, E)
    yield layer + "self_attn.v_proj.weight", (DIM, E)
    yield layer + "self_attn.o_proj.weight", (E, DIM)
    yield layer + "self_attn.q_norm.weight", (DIM,)
    yield layer + "self_attn.k_norm.weight", (DIM,)


def recurrent(layer):
    for name, shape in (("in_proj_qkv.weight", (8, E)), ("in_proj_z.weight", (4, E)), ("conv1d.weight", (8, 1, 2)), ("dt_bias", (2,)),
                        ("A_log", (2,)), ("in_proj_a.weight", (2, E)), ("in_proj_b.weight", (2, E)), ("norm.weight", (2,)),
                        ("out_proj.weight", (E, 4))):
        yield layer + "linear_attn." + name, shape


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, E)
    yield "model.norm.weight", (E,)
    for layer, part in (("model.layers.0.", recurrent), ("model.layers.1.", attention), ("mtp.layers.0.", attention)):
        yield from part(layer)
        for name, shape in (("input_layernorm", (E,)), ("post_attention_layernorm", (E,)), ("mlp.gate_proj", (FF, E)),
                            ("mlp.up_proj", (FF, E)), ("mlp.down_proj", (E, FF))):
            yield f"{layer}{name}.weight", shape
    yield "mtp.fc.weight", (E, 2 * E)
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        yield f"mtp.{name}.weight", (E,)


def safetensors():
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for i, (name, shape) in enumerate(shapes()):
        dtype, size = (("BF16", 2), ("F16", 2), ("F32", 4))[i % 3]
        for n in shape:
            size *= n
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def packed(method):
    """A model of a layer whose matrices are packed, and its configuration."""
    size, tensors, used = 32, {}, None
    random.seed(method)
    config = dict(LLAMA, hidden_size=size, intermediate_size=size, num_key_value_heads=1, architectures=["Qwen2ForCausalLM"], rope_scaling=None, tie_word_embeddings=True)
    for name in ("embed_tokens", "norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"):
        shape = [VOCAB, size] if name == "embed_tokens" else [size]
        tensors[f"model.{name}.weight"] = ("F16", shape, bytes(2 * size * (VOCAB if name == "embed_tokens" else 1)))
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        (parts, _), used = pack_checkpoint.pack(method, size, size)
        if name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            parts["bias"] = ("F16", [size], bytes(2 * size))
        tensors.update({f"model.layers.0.{name}.{part}": tensor for part, tensor in parts.items()})
    text = json.dumps(dict(config, quantization_config=used), separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text + pack_checkpoint.file_of(tensors)


# The model of tests/golden/qwen35-mtp.bf16.gguf (tools/golden_qwen35.py).
MTP = dict(architectures=["Qwen3_5ForCausalLM"], vocab_size=72, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
           num_attention_heads=2, num_key_value_heads=1, head_dim=48, layer_types=["linear_attention", "full_attention", "linear_attention"],
           linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=48, linear_value_head_dim=16, linear_conv_kernel_dim=4,
           tie_word_embeddings=True, mtp_num_hidden_layers=1, rms_norm_eps=1e-6, max_position_embeddings=512, dtype="bfloat16",
           rope_parameters=dict(rope_type="default", rope_theta=1e5, partial_rotary_factor=0.5, mrope_section=[4, 4, 4]))


def block_header(prefix="mtp."):
    """The header of a safetensors file with the block alone, and the size of its data."""
    e, ff, dim, q, kv = 48, 64, 48, 96, 48
    layer = prefix + "layers.0."
    shapes = {prefix + "fc": (e, 2 * e), layer + "self_attn.q_proj": (2 * q, e), layer + "self_attn.k_proj": (kv, e),
              layer + "self_attn.v_proj": (kv, e), layer + "self_attn.o_proj": (e, q), layer + "mlp.gate_proj": (ff, e),
              layer + "mlp.up_proj": (ff, e), layer + "mlp.down_proj": (e, ff), layer + "self_attn.q_norm": (dim,),
              layer + "self_attn.k_norm": (dim,)}
    shapes.update({name: (e,) for name in (layer + "input_layernorm", layer + "post_attention_layernorm", prefix + "norm",
                                           prefix + "pre_fc_norm_embedding", prefix + "pre_fc_norm_hidden")})
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name + ".weight"] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    return at, header


def grafts():
    """Names and inputs of fuzz_graft.c."""
    compact = dict(separators=(",", ":"))
    size, header = block_header()
    yield "config", b"\2" + json.dumps(MTP, **compact).encode()
    yield "yarn", b"\2" + json.dumps(dict(MTP, rope_parameters=YARN["rope_parameters"]), **compact).encode()
    yield "two_blocks", b"\2" + json.dumps(dict(MTP, mtp_num_hidden_layers=2), **compact).encode()
    yield "other_class", b"\2" + json.dumps(LLAMA, **compact).encode()
    yield "header", b"\3" + struct.pack("<H", size) + json.dumps(header, **compact).encode()
    yield "nested", b"\3" + struct.pack("<H", size) + json.dumps(block_header("model.mtp.")[1], **compact).encode()
    index = dict(weight_map=dict({name: "b.safetensors" for name in header}, **{"model.norm.weight": "a.safetensors"}))
    yield "index", b"\4" + json.dumps(index, **compact).encode()


def headers():
    """Names and the bytes of the data, with a header."""
    data = safetensors()
    length, = struct.unpack("<Q", data[:8])
    yield "checkpoint", len(data) - 8 - length, json.loads(data[8:8 + length])
    dtypes = (("F64", 8), ("I64", 8), ("I32", 4), ("I16", 2), ("I8", 1), ("U64", 8), ("U32", 4), ("U16", 2), ("U8", 1), ("C64", 8), ("BOOL", 1),
              ("F8_E4M3", 1), ("F8_E5M2", 1))
    header, at = {}, 0
    for dtype, size in dtypes:
        header[dtype.lower()] = dict(dtype=dtype, shape=[2, 3], data_offsets=[at, at + 6 * size])
        at += 6 * size
    yield "dtypes", at, header
    yield "empty", 0, {"a": dict(dtype="F32", shape=[0, 1 << 40], data_offsets=[0, 0]), "b": dict(dtype="F32", shape=[], data_offsets=[0, 4])}
    yield "overlap", 8, {name: dict(dtype="F32", shape=[2], data_offsets=[0, 8]) for name in "ab"}
    yield "deep", 4, {"__metadata__": {"a": [[[[{"b": "\u00e9\n\ud83d\ude00"}]]]]}, "a": dict(dtype="F32", shape=[1] * 8, data_offsets=[0, 4])}


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    index = dict(weight_map={name: "model.safetensors" for name, _ in shapes()})
    seeds = {"base_0": safetensors(), "base_1": CONFIG, "base_2": TOKENIZER, "base_3": SETTINGS, "index_4": index,
             "generation_5": GENERATION, "llama_1": LLAMA, "yarn_1": YARN, "flags_2": FLAGS}
    seeds.update({method.replace("-", "_") + "_6": packed(method) for method in ("fp8-wide", "fp8-row", "mlx-4", "mlx-3", "gptq_act-4", "awq")})
    convert, safe = (os.path.join(sys.argv[1], name) for name in ("convert", "safetensors"))
    os.makedirs(convert, exist_ok=True)
    os.makedirs(safe, exist_ok=True)
    graft = os.path.join(sys.argv[1], "graft")
    os.makedirs(graft, exist_ok=True)
    for name, data in grafts():
        with open(os.path.join(graft, name), "wb") as f:
            f.write(data)
    for name, size, header in headers():
        with open(os.path.join(safe, name), "wb") as f:
            f.write(struct.pack("<H", size) + json.dumps(header, separators=(",", ":")).encode())
    for name, value in seeds.items():
        data = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
        with open(os.path.join(convert, name), "wb") as f:
            f.write(name[-1].encode() + data)


if __name__ == "__main__":
    main()
