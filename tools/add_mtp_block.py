#!/usr/bin/env python3
"""Add a random block for multi-token prediction (nextn) to a Qwen3.5 GGUF file, to measure and to test drafts.

usage: add_mtp_block.py MODEL.gguf OUT.gguf [--type q8_0|q1_0|f16] [--seed N] [--likely FIRST-LAST] [--alone]

The block has the model's shapes and means nothing: use it with `quern bench --draft mtp --accept R`. --likely gives it an output
matrix of its own, by which the tokens FIRST to LAST are likelier than others. --alone leaves out the tensors of the model, for
--draft-model. A rotated model's block is not rotated.

Needs numpy. The whole model is in memory.

SPDX-License-Identifier: Apache-2.0
"""
import argparse

import numpy as np

import ggufio


def encode(type_name, w):
    """A matrix [n_out, n_in] in the layout of a type."""
    if type_name == "f16":
        return ggufio.encode_plain("f16", w)
    if type_name == "q8_0":
        v = w.reshape(-1, 32)
        d = (np.abs(v).max(axis=1, keepdims=True) / 127.0).astype("<f2")
        codes = np.rint(v / np.maximum(d.astype(np.float32), 1e-8)).clip(-127, 127).astype(np.int8)
        return np.concatenate([d.view(np.uint8), codes.view(np.uint8)], axis=1).reshape(-1)
    v = w.reshape(-1, 128)
    d = np.abs(v).mean(axis=1, keepdims=True).astype("<f2")
    return np.concatenate([d.view(np.uint8), np.packbits(v >= 0, axis=1, bitorder="little")], axis=1).reshape(-1)


def block_tensors(keys, n_vocab, rng, type_name, likely):
    def key(name):
        return keys["qwen35." + name]

    e, ff, dim = key("embedding_length"), key("feed_forward_length"), key("attention.key_length")
    heads, kv = key("attention.head_count"), key("attention.head_count_kv")
    block = f"blk.{key('block_count')}."
    matrices = {"nextn.eh_proj": (e, 2 * e), "attn_q": (2 * heads * dim, e), "attn_k": (kv * dim, e), "attn_v": (kv * dim, e),
                "attn_output": (e, heads * dim), "ffn_gate": (ff, e), "ffn_up": (ff, e), "ffn_down": (e, ff)}
    norms = {"nextn.enorm": e, "nextn.hnorm": e, "nextn.shared_head_norm": e, "attn_norm": e, "post_attention_norm": e,
             "attn_q_norm": dim, "attn_k_norm": dim}
    if likely:
        matrices["nextn.shared_head_head"] = (n_vocab, e)
    for name, width in norms.items():
        yield ggufio.Tensor(f"{block}{name}.weight", (width,), "f32", ggufio.encode_plain("f32", rng.uniform(0.5, 1.5, width)))
    for name, dims in matrices.items():
        w = (rng.standard_normal(dims, np.float32) / np.sqrt(dims[1])).astype(np.float32)
        if name == "nextn.shared_head_head":
            w[likely[0]:likely[1] + 1] *= 16
        yield ggufio.Tensor(f"{block}{name}.weight", dims, type_name, encode(type_name, w))


def add(keys, tensors, type_name="q8_0", seed=1, likely=None):
    """The keys and tensors of a model with a block."""
    if keys["general.architecture"] != "qwen35" or keys.get("qwen35.nextn_predict_layers"):
        raise SystemExit("the model is not of architecture qwen35, or has a block")
    n_vocab = next(t.shape[0] for t in tensors if t.name == "token_embd.weight")
    own = list(block_tensors(keys, n_vocab, np.random.default_rng(seed), type_name, likely))
    keys = dict(keys)
    recurrent = keys.get("qwen35.attention.recurrent_layers")
    if recurrent is not None:
        keys["qwen35.attention.recurrent_layers"] = np.array(list(recurrent) + [False])
    keys["qwen35.block_count"] += 1
    keys["qwen35.nextn_predict_layers"] = 1
    return keys, [*tensors, *own]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--type", choices=("q8_0", "q1_0", "f16"), default="q8_0")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--likely", metavar="FIRST-LAST")
    parser.add_argument("--alone", action="store_true")
    a = parser.parse_args()
    keys, tensors = ggufio.read(a.model)
    keys = {name: np.array(v, "i4") if isinstance(v, list) and v and type(v[0]) is int else v for name, v in keys.items()}
    likely = [int(i) for i in a.likely.split("-")] if a.likely else None
    keys, joined = add(keys, list(tensors.values()), a.type, a.seed, likely)
    ggufio.write(a.out, keys, joined[len(tensors):] if a.alone else joined)


if __name__ == "__main__":
    main()
