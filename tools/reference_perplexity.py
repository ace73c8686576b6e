#!/usr/bin/env python3
"""Perplexity of a llama or qwen3 GGUF file in float32 by Hugging Face transformers: what `quern perplexity` is compared with.

usage: reference_perplexity.py MODEL.gguf TEXT [--bytes 65536] [-c 512] [--ids IDS] [--chunks] [--int8 N [--scale S]]

The rule, which is quern's too: the first --bytes bytes of the text (a character cut in two at the end is dropped) are tokenised as
a whole, special tokens as plain text, with the beginning-of-text token in front where the file requires one. The tokens are cut
into chunks of c that do not overlap; what is left at the end, less than c tokens, is dropped. Where the file requires it, the
beginning-of-text token also replaces the first token of every chunk. Each chunk is evaluated from an empty context, and its second
half is scored: the logits at positions c/2-1 .. c-2 predict the tokens at c/2 .. c-1. Perplexity is exp(mean of -ln p over all
scored tokens).

The weights are the file's, decoded exactly and rounded to float32, loaded into transformers with q and k back in its order of rows.
Tokens come from the `tokenizers` package with the file's own vocabulary and merges; SmolLM2's pre-tokeniser is built in, for
another give --ids, a file of token ids. --chunks prints the running value. --int8 and --scale round the inputs of all products as
reference_logits.py does, to see what that alone does to the perplexity.

Needs numpy, torch, transformers and tokenizers.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import math
import time

import numpy as np
import torch

import ggufio
import make_golden_models
from reference_logits import Int8, read_ids


def shape_of(keys, tensors):
    a = keys["general.architecture"]
    if a not in ("llama", "qwen3"):
        raise SystemExit(f"architecture '{a}', expected llama or qwen3")
    if "rope_freqs.weight" in tensors or f"{a}.rope.scaling.type" in keys:
        raise SystemExit("files with scaled rope are not handled here")
    hidden, heads = keys[f"{a}.embedding_length"], keys[f"{a}.attention.head_count"]
    return dict(arch=a, layers=keys[f"{a}.block_count"], hidden=hidden, ff=keys[f"{a}.feed_forward_length"], heads=heads,
                kv=keys.get(f"{a}.attention.head_count_kv", heads), head_dim=keys.get(f"{a}.attention.key_length", hidden // heads),
                tied="output.weight" not in tensors, base=keys.get(f"{a}.rope.freq_base", 10000.0),
                eps=keys[f"{a}.attention.layer_norm_rms_epsilon"], vocab=tensors["token_embd.weight"].shape[0],
                ctx=keys[f"{a}.context_length"])


def halves(w, n_heads):
    """Rows of q or k from GGUF's order (neighbours turn together) to transformers' (halves of a head turn together)."""
    return w.reshape(n_heads, w.shape[0] // n_heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def load(keys, tensors):
    shape = shape_of(keys, tensors)
    state = {}
    for name, hf_name, dims in make_golden_models.tensor_shapes(shape):
        w = tensors[name].decode().astype(np.float32)
        if w.shape != dims:
            raise SystemExit(f"tensor '{name}' is {w.shape}, expected {dims}")
        if shape["arch"] == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            w = halves(w, shape["heads"] if "attn_q" in name else shape["kv"])
        state[hf_name] = w
    return make_golden_models.transformers_model(shape, state)


def tokenise(keys, path, n_bytes):
    from tokenizers import Tokenizer, models, pre_tokenizers

    pre = keys.get("tokenizer.ggml.pre")
    if keys["tokenizer.ggml.model"] != "gpt2" or pre != "smollm":
        raise SystemExit(f"pre-tokeniser '{pre}' is not built in: give the tokens with --ids")
    vocab = {piece: i for i, piece in enumerate(keys["tokenizer.ggml.tokens"])}
    merges = [tuple(m.split(" ", 1)) for m in keys["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    with open(path, "rb") as f:
        text = f.read(n_bytes).decode("utf-8", "ignore")
    bos = [keys["tokenizer.ggml.bos_token_id"]] if keys.get("tokenizer.ggml.add_bos_token", False) else []
    return np.array(bos + tokenizer.encode(text).ids)


def round_inputs(model, int8):
    """Every linear layer then sees its input as int8 would give it."""

    def before(_, inputs):
        x = inputs[0]
        return (torch.from_numpy(int8.activation("", x.double().numpy())).float(),)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--bytes", type=int, default=65536)
    parser.add_argument("-c", type=int, default=512)
    parser.add_argument("--ids", help="take the tokens from this file, not from TEXT")
    parser.add_argument("--chunks", action="store_true")
    parser.add_argument("--int8", type=int, metavar="N", help="round activations to int8 with a scale per N values")
    parser.add_argument("--scale", choices=("absmax", "mse", "minmax"), default="absmax")
    a = parser.parse_args()
    keys, tensors = ggufio.read(a.model)
    ids = read_ids(a.ids) if a.ids else tokenise(keys, a.text, a.bytes)
    n_chunks, half = len(ids) // a.c, a.c // 2
    if n_chunks == 0:
        raise SystemExit(f"{len(ids)} tokens, fewer than one chunk of {a.c}")
    model, total, start = load(keys, tensors), 0.0, time.time()
    if a.int8:
        round_inputs(model, Int8(a.int8, a.scale))
    for i in range(n_chunks):
        if keys.get("tokenizer.ggml.add_bos_token", False):
            ids[i * a.c] = keys["tokenizer.ggml.bos_token_id"]
        chunk = torch.from_numpy(ids[i * a.c:(i + 1) * a.c].astype(np.int64))
        with torch.no_grad():
            logits = model(chunk[None]).logits[0, half - 1:a.c - 1].double()
        total += float(torch.nn.functional.cross_entropy(logits, chunk[half:], reduction="sum"))
        if a.chunks:
            print(f"{i + 1}/{n_chunks} {math.exp(total / ((i + 1) * (a.c - half))):.4f} ({time.time() - start:.0f} s)", flush=True)
    print(f"perplexity {math.exp(total / (n_chunks * (a.c - half))):.4f}, {len(ids)} tokens, {n_chunks} chunks of {a.c}")


if __name__ == "__main__":
    main()
