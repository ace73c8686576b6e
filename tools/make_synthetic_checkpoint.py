#!/usr/bin/env python3
"""Make a checkpoint of 3.4 GB with the shape of Qwen3-1.7B and random bf16 weights, to measure quern convert.

usage: make_synthetic_checkpoint.py OUT_FOLDER binary|ternary|ordinary

Groups of 128 weights are d and -d, or d, 0 and -d, with a scale of their own. The tokeniser is that of a golden checkpoint: its
few tokens are the first of the vocabulary.

    python3 tools/make_synthetic_checkpoint.py /tmp/ternary ternary
    /usr/bin/time -v quern convert /tmp/ternary /tmp/ternary.gguf
    time cat /tmp/ternary/model.safetensors >/dev/null

Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import shutil
import struct
import sys

import numpy as np

SHAPE = dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
             head_dim=128, vocab_size=151936, max_position_embeddings=40960, rms_norm_eps=1e-6, tie_word_embeddings=True,
             rope_theta=1000000, hidden_act="silu", architectures=["Qwen3ForCausalLM"], model_type="qwen3", torch_dtype="bfloat16")
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden", "checkpoints", "qwen3-low-bit")


def tensor_shapes():
    e, ff, dim = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"]
    q, kv = SHAPE["num_attention_heads"] * dim, SHAPE["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (SHAPE["vocab_size"], e)
    for i in range(SHAPE["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (("input_layernorm", (e,)), ("mlp.down_proj", (e, ff)), ("mlp.gate_proj", (ff, e)), ("mlp.up_proj", (ff, e)),
                            ("post_attention_layernorm", (e,)), ("self_attn.k_norm", (dim,)), ("self_attn.k_proj", (kv, e)),
                            ("self_attn.o_proj", (e, q)), ("self_attn.q_norm", (dim,)), ("self_attn.q_proj", (q, e)),
                            ("self_attn.v_proj", (kv, e))):
            yield f"{layer}{name}.weight", shape
    yield "model.norm.weight", (e,)


def bf16(x):
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def rows(kind, n, width, rng):
    if kind == "ordinary":
        return bf16(rng.standard_normal((n, width), np.float32) * 0.02)
    scales = bf16(rng.uniform(0.01, 0.03, (n, width // 128, 1)).astype(np.float32))
    signs = rng.integers(0, 2, (n, width // 128, 128), np.uint16) << 15
    values = scales | signs
    if kind == "ternary":
        values *= rng.integers(0, 3, values.shape, np.uint8) > 0
    return values.reshape(n, width)


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in ("binary", "ternary", "ordinary"):
        raise SystemExit(__doc__)
    folder, kind = sys.argv[1:]
    rng = np.random.default_rng(1)
    os.makedirs(folder, exist_ok=True)
    header, at = {}, 0
    for name, shape in tensor_shapes():
        size = 2 * int(np.prod(shape))
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensor_shapes():
            if len(shape) == 1:
                f.write(bf16(np.ones(shape)).tobytes())
                continue
            for row in range(0, shape[0], 8192):
                f.write(rows(kind, min(8192, shape[0] - row), shape[1], rng).tobytes())
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(SHAPE, f, indent=2)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(TOKENIZER, name), folder)


if __name__ == "__main__":
    main()
