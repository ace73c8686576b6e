#!/usr/bin/env python3
"""Make a random DFlash drafter (architecture dflash) for a GGUF model, to measure and to test drafts.

usage: make_dflash_drafter.py MODEL.gguf OUT.gguf [--layers N] [--block N] [--capture L,L...] [--heads N] [--kv N] [--head-dim N]
                              [--window N] [--type q8_0|q1_0|f16|f32] [--seed N] [--likely FIRST-LAST] [--markov RANK]

It has the shapes of the published drafters and means nothing: use it with `quern bench --draft dflash --accept R`. --likely gives it
an output matrix of its own, by which the tokens FIRST to LAST are likelier than others; --markov the Markov and confidence heads of
DSpark.

Needs numpy. Only the keys and the shape of the embedding table of MODEL are used.

SPDX-License-Identifier: Apache-2.0
"""
import argparse

import numpy as np

import ggufio
from add_mtp_block import encode


def keys_of(hidden, layers, block, mask, captured, heads, kv, head_dim, ff, base=1e6, eps=1e-6, window=0, slides=None,
            causal=False, ctx=32768, from_anchor=None, name="random drafter"):
    keys = {
        "general.architecture": "dflash",
        "general.name": name,
        "dflash.block_count": layers,
        "dflash.context_length": ctx,
        "dflash.embedding_length": hidden,
        "dflash.feed_forward_length": ff,
        "dflash.attention.head_count": heads,
        "dflash.attention.head_count_kv": kv,
        "dflash.attention.key_length": head_dim,
        "dflash.attention.value_length": head_dim,
        "dflash.attention.layer_norm_rms_epsilon": eps,
        "dflash.rope.freq_base": float(base),
        "dflash.block_size": block,
        "dflash.target_layers": np.array(captured, "u4"),
        "tokenizer.ggml.mask_token_id": mask,
    }
    if window:
        keys["dflash.attention.sliding_window"] = window
        if slides is not None:
            keys["dflash.attention.sliding_window_pattern"] = np.array(slides, bool)
    if causal:
        keys["dflash.attention.causal"] = True
    if from_anchor is not None:
        keys["dflash.sample_from_anchor"] = from_anchor
    return keys


def tensor_shapes(keys, n_vocab, own_output, markov=0):
    """Matrices are [n_out, n_in]."""
    def key(name):
        return keys["dflash." + name]

    e, ff, dim = key("embedding_length"), key("feed_forward_length"), key("attention.key_length")
    heads, kv = key("attention.head_count"), key("attention.head_count_kv")
    yield "fc.weight", (e, e * len(key("target_layers")))
    yield "enc.output_norm.weight", (e,)
    yield "output_norm.weight", (e,)
    if own_output:
        yield "output.weight", (n_vocab, e)
    if markov:
        yield "markov_w1.weight", (n_vocab, markov)
        yield "markov_w2.weight", (n_vocab, markov)
        yield "conf_proj.weight", (1, e + markov)
    for i in range(key("block_count")):
        for name, dims in {"attn_norm": (e,), "attn_q": (heads * dim, e), "attn_k": (kv * dim, e), "attn_v": (kv * dim, e),
                           "attn_q_norm": (dim,), "attn_k_norm": (dim,), "attn_output": (e, heads * dim), "ffn_norm": (e,),
                           "ffn_gate": (ff, e), "ffn_up": (ff, e), "ffn_down": (e, ff)}.items():
            yield f"blk.{i}.{name}.weight", dims


def draw(keys, n_vocab, rng, type_name, likely=None, markov=0):
    for name, dims in tensor_shapes(keys, n_vocab, likely is not None, markov):
        if len(dims) == 1:
            yield ggufio.Tensor(name, dims, "f32", ggufio.encode_plain("f32", rng.uniform(0.5, 1.5, dims)))
            continue
        w = (rng.standard_normal(dims, np.float32) / np.sqrt(dims[1])).astype(np.float32)
        if name == "output.weight":
            w[likely[0]:likely[1] + 1] *= 16
        if name.startswith("markov"):
            w *= 4 if likely is None else 0.25
        plain = type_name in ("f32", "f16", "bf16")
        yield ggufio.Tensor(name, dims, type_name, ggufio.encode_plain(type_name, w) if plain else encode(type_name, w))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--capture", metavar="L,L...", help="layers of the model whose inputs are used (default five, spread evenly)")
    parser.add_argument("--heads", type=int)
    parser.add_argument("--kv", type=int)
    parser.add_argument("--head-dim", type=int)
    parser.add_argument("--ff", type=int)
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--type", choices=("q8_0", "q1_0", "f16", "f32"), default="q8_0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--likely", metavar="FIRST-LAST")
    parser.add_argument("--markov", type=int, default=0, metavar="RANK")
    a = parser.parse_args()
    model, tensors = ggufio.read(a.model)
    arch = model["general.architecture"]

    def key(name, otherwise=None):
        return model.get(f"{arch}.{name}", otherwise)

    n_vocab, hidden = next(t.shape for t in tensors.values() if t.name == "token_embd.weight")
    n_layers = key("block_count") - key("nextn_predict_layers", 0)
    heads = a.heads or key("attention.head_count")
    captured = [int(i) for i in a.capture.split(",")] if a.capture else sorted({1 + i * (n_layers - 2) // 4 for i in range(5)})
    keys = keys_of(hidden, a.layers, a.block, n_vocab - 1, captured, heads, a.kv or key("attention.head_count_kv", heads),
                   a.head_dim or key("attention.key_length", hidden // heads), a.ff or key("feed_forward_length"),
                   window=a.window, ctx=key("context_length"))
    likely = [int(i) for i in a.likely.split("-")] if a.likely else None
    ggufio.write(a.out, keys, list(draw(keys, n_vocab, np.random.default_rng(a.seed), a.type, likely, a.markov)))


if __name__ == "__main__":
    main()
