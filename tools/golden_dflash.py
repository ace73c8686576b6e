#!/usr/bin/env python3
"""The golden block drafters of tests/golden: small random DFlash drafters for golden models, and the logits of their blocks.

usage: golden_dflash.py FOLDER [NAME...]     FOLDER has the golden models (make_golden_models.py)

For NAME it writes NAME.gguf and NAME.blocks.f32 (raw little-endian f32 [lengths, tokens of a block, n_vocab]): logits of a block of the last
token and mask tokens after so many ids of the model, which are repeated, as LENGTHS has, in float64. The definition is that of the reference (z-lab/dflash,
dflash/model.py): keys and values of positions before the block come of the model's hidden states, those of the block of its own rows.
With a Markov head (DSpark; deepseek-ai/DeepSpec, deepspec/modeling/dspark/markov_head.py, and llama.cpp, src/models/dflash.cpp) the
logits of each token have the head's of the likeliest token before it added.

Needs numpy. The same numpy version gives the same files.

SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import numpy as np

import ggufio
import make_dflash_drafter
import reference_logits
from reference_logits import Arithmetic, rms_norm, silu, softmax

# The first row that has a block, ends of pages and of the blocks that attention works in, the open page.
LENGTHS = 1, 2, 30, 56, 64, 130, 184, 190, 300

# The model, and what make_dflash_drafter.keys_of is told of the drafter.
DRAFTERS = {
    # Heads as those of the model. It is rotated, which the drafter's weights are not.
    "qwen35-dflash.f16": ("qwen35-mtp-grafted.f16", "f16", dict(
        layers=2, block=8, mask=71, captured=[1, 2], heads=4, kv=2, head_dim=64, ff=96, base=1e4)),
    # Other heads than the model's, a layer that slides, and blocks longer than the window of others.
    "qwen35-dflash-wide.bf16": ("qwen35-mtp-grafted.f16", "bf16", dict(
        layers=3, block=16, mask=70, captured=[2], heads=3, kv=1, head_dim=128, ff=64, base=1e6, window=40, slides=[1, 0, 1])),
    # Causal blocks, and an output matrix of the drafter's own. Heads that caches have no codes for.
    "qwen3-dflash-causal.f32": ("qwen3-yarn.f16", "f32", dict(
        layers=1, block=4, mask=0, captured=[1, 1], heads=4, kv=4, head_dim=32, ff=48, base=1e5, eps=1e-5, window=100, causal=True,
        likely=(3, 9))),
    # Markov heads: the first row proposes a token, or is that of the last token alone.
    "qwen35-dspark.f16": ("qwen35-mtp-grafted.f16", "f16", dict(
        layers=1, block=7, mask=71, captured=[1, 2], heads=4, kv=2, head_dim=64, ff=64, base=1e4, markov=32)),
    "qwen35-dspark-bonus.bf16": ("qwen35-mtp-grafted.f16", "bf16", dict(
        layers=1, block=5, mask=71, captured=[2], heads=4, kv=2, head_dim=64, ff=64, base=1e4, markov=40, from_anchor=False)),
}


class Drafter:
    def __init__(self, path, model):
        self.keys, tensors = ggufio.read(path)
        self.model = model
        self.weights = {name: t.decode() for name, t in tensors.items()}
        self.heads, self.kv, self.dim = (self.key(f"attention.{name}") for name in ("head_count", "head_count_kv", "key_length"))
        self.eps = self.key("attention.layer_norm_rms_epsilon")

    def key(self, name, otherwise=None):
        return self.keys.get("dflash." + name, otherwise)

    def rope(self, x, first):
        """x [n, heads, dim], from position `first` on; pairs are half a head apart."""
        frequency = self.key("rope.freq_base") ** (-np.arange(0, self.dim, 2) / self.dim)
        angle = (first + np.arange(len(x)))[:, None, None] * frequency
        a, b = x[..., :self.dim // 2], x[..., self.dim // 2:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)

    def keys_and_values(self, layer, x, first):
        prefix = f"blk.{layer}."
        k = (x @ self.weights[prefix + "attn_k.weight"].T).reshape(len(x), self.kv, self.dim)
        v = (x @ self.weights[prefix + "attn_v.weight"].T).reshape(len(x), self.kv, self.dim)
        return self.rope(rms_norm(k, self.weights[prefix + "attn_k_norm.weight"], self.eps), first), v

    def attention(self, layer, x, context):
        prefix, n = f"blk.{layer}.", len(context)
        q = (x @ self.weights[prefix + "attn_q.weight"].T).reshape(len(x), self.heads, self.dim)
        q = self.rope(rms_norm(q, self.weights[prefix + "attn_q_norm.weight"], self.eps), n)
        k, v = (np.concatenate(parts) for parts in zip(self.keys_and_values(layer, context, 0), self.keys_and_values(layer, x, n)))
        at, of = n + np.arange(len(x))[:, None], np.arange(len(k))[None, :]
        seen = np.ones((len(x), len(k)), bool)
        if self.key("attention.causal", False):
            seen &= of <= at
        if self.key("attention.sliding_window_pattern", [True] * (layer + 1))[layer] and self.key("attention.sliding_window"):
            seen &= at - of < self.key("attention.sliding_window")
        out = np.empty((len(x), self.heads, self.dim))
        for h in range(self.heads):
            of_kv = h // (self.heads // self.kv)
            scores = np.where(seen, q[:, h] @ k[:, of_kv].T / np.sqrt(self.dim), -np.inf)
            out[:, h] = softmax(scores) @ v[:, of_kv]
        return out.reshape(len(x), -1) @ self.weights[prefix + "attn_output.weight"].T

    def block(self, ids, length):
        """Logits [tokens, n_vocab] of the block whose first token is ids[length]."""
        w, model, n = self.weights, self.model, self.key("block_size")
        inputs = model.layer_inputs(ids[:length])
        captured = np.concatenate([inputs[layer] for layer in self.key("target_layers")], axis=1)
        context = rms_norm(captured @ w["fc.weight"].T, w["enc.output_norm.weight"], self.eps)
        tokens = [ids[length]] + [self.keys["tokenizer.ggml.mask_token_id"]] * (n - 1)
        x = model.rotation.rows("token_embd.weight", model.weights["token_embd.weight"][tokens])
        for layer in range(self.key("block_count")):
            prefix = f"blk.{layer}."
            x = x + self.attention(layer, rms_norm(x, w[prefix + "attn_norm.weight"], self.eps), context)
            y = rms_norm(x, w[prefix + "ffn_norm.weight"], self.eps)
            y = silu(y @ w[prefix + "ffn_gate.weight"].T) * (y @ w[prefix + "ffn_up.weight"].T)
            x = x + y @ w[prefix + "ffn_down.weight"].T
        has_chain = "markov_w1.weight" in w
        x = rms_norm(x, w["output_norm.weight"], self.eps)[0 if has_chain and self.key("sample_from_anchor", True) else 1:]
        if "output.weight" in w:
            logits = x @ w["output.weight"].T
        else:
            logits = model.product("output.weight" if "output.weight" in model.weights else "token_embd.weight", x, Arithmetic())
        before = ids[length]
        for i in range(len(logits) if has_chain else 0):
            logits[i] = logits[i] + w["markov_w2.weight"] @ w["markov_w1.weight"][before]
            before = int(np.argmax(logits[i]))
        return logits


def make(folder, name):
    of, type_name, shape = DRAFTERS[name]
    path = os.path.join(folder, name)
    model = reference_logits.Model(os.path.join(folder, of + ".gguf"))
    n_vocab, hidden = model.weights["token_embd.weight"].shape
    rng = np.random.default_rng([ord(c) for c in name])
    shape = dict(shape)
    likely, markov = shape.pop("likely", None), shape.pop("markov", 0)
    keys = make_dflash_drafter.keys_of(hidden, name=f"golden {name}", **shape)
    ggufio.write(path + ".gguf", keys, list(make_dflash_drafter.draw(keys, n_vocab, rng, type_name, likely, markov)))
    ids = reference_logits.read_ids(os.path.join(folder, of + ".ids"))
    drafter = Drafter(path + ".gguf", model)
    ids = np.resize(ids, max(LENGTHS) + 1)
    np.array([drafter.block(ids, n) for n in LENGTHS]).astype("<f4").tofile(path + ".blocks.f32")
    print(f"{name:24} {os.path.getsize(path + '.gguf'):8} bytes")


def main():
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        raise SystemExit(__doc__)
    for name in sys.argv[2:] or DRAFTERS:
        make(sys.argv[1], name)


if __name__ == "__main__":
    main()
