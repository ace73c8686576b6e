#!/usr/bin/env python3
"""What each part of the recipe of a cache of AURA codes is worth: the perplexity of a llama or qwen3 GGUF file in float32, with
keys and values as a cache would give them back.

usage: aura_ablation.py MODEL.gguf TEXT [--chunks 8] [-c 512] [--ids IDS] [--only NAME ...]

A simulation in Hugging Face transformers: no kernel of quern's is in it, so that it also shows what a recipe would be worth that
quern has not. Tokens, chunks and scores are those of reference_perplexity.py. A recipe is
  bits    of keys and values; none: as they are
  open    queries see the keys and values of their own run of so many positions as they are: codes are made of runs that are full
  first   the first so many positions stay as they are
  mean    what is taken from keys before they are encoded and put back after: the mean of the first 64, or of each block of so many
          (as if every block were complete, which the last is not in a real cache)
Codes are those of docs/internals/aura-cache.md: a signed Walsh-Hadamard rotation, a Lloyd-Max codebook of one coordinate of a unit vector, the
row's norm restored. Printed as rows of a Markdown table.

Needs numpy, torch, transformers and tokenizers, and heads of a power of two.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import ggufio
from reference_logits import read_ids
from reference_perplexity import load, tokenise

FIRST_PAGE = 64  # positions whose keys have the mean


@dataclass
class Recipe:
    name: str
    key_bits: int = 0
    value_bits: int = 0
    open: int = 0
    first: int = 0
    mean: int | str = 0  # "first", or positions of a block


def both(name, bits, **parts):
    return Recipe(name, bits, bits, **parts)


RECIPES = [Recipe("f16")]
for b in (4, 3):
    RECIPES += [
        both(f"{b}: plain codes", b),
        Recipe(f"{b}: plain codes, keys alone", b, 0),
        Recipe(f"{b}: plain codes, values alone", 0, b),
        both(f"{b}: open 32", b, open=32),
        both(f"{b}: open 64", b, open=64),
        both(f"{b}: open 128", b, open=128),
        both(f"{b}: open 64, first 4", b, open=64, first=4),
        both(f"{b}: open 64, first 16", b, open=64, first=16),
        both(f"{b}: open 64, first 64", b, open=64, first=64),
        both(f"{b}: open 64, mean of the first 64", b, open=64, mean="first"),
        both(f"{b}: open 64, first 4, mean of the first 64", b, open=64, first=4, mean="first"),
        both(f"{b}: open 64, first 64, mean of the first 64: the cache", b, open=64, first=64, mean="first"),
        both(f"{b}: open 64, first 64, mean of each 64", b, open=64, first=64, mean=64),
        both(f"{b}: open 64, first 64, mean of each 256", b, open=64, first=64, mean=256),
    ]


@functools.lru_cache(None)
def codebook(dim, bits):
    """Lloyd-Max of one coordinate of a uniform unit vector: levels between boundaries, boundaries between levels."""
    x = np.linspace(-1, 1, 200001)
    density = (1 - x * x) ** ((dim - 3) / 2)
    mass, moment = np.cumsum(density), np.cumsum(density * x)
    levels = np.interp((np.arange(2 ** bits) + 0.5) / 2 ** bits, mass / mass[-1], x)
    for _ in range(6000):
        cut = np.concatenate([[0], np.searchsorted(x, (levels[1:] + levels[:-1]) / 2), [len(x) - 1]])
        levels = np.diff(moment[cut]) / np.diff(mass[cut])
    return torch.tensor(levels, dtype=torch.float32)


@functools.lru_cache(None)
def rotation(dim):
    h = np.ones((1, 1))
    while h.shape[0] < dim:
        h = np.block([[h, h], [h, -h]])
    if h.shape[0] != dim:
        raise SystemExit(f"heads of {dim} values, expected a power of two")
    signs = np.random.default_rng(1).choice([-1, 1], dim)
    return torch.tensor(h * signs / math.sqrt(dim), dtype=torch.float32)


def coded(x, bits):
    """Rows [..., dim] encoded and decoded."""
    if not bits:
        return x
    turn, levels = rotation(x.shape[-1]), codebook(x.shape[-1], bits)
    norm = x.norm(dim=-1, keepdim=True)
    y = levels[torch.bucketize(x / norm @ turn.T, (levels[1:] + levels[:-1]) / 2)]
    return y * (norm / y.norm(dim=-1, keepdim=True)) @ turn


def mean_of(keys, mean):
    """[..., T or 1, dim] of keys [..., T, dim]."""
    if mean == "first":
        return keys[..., :FIRST_PAGE, :].mean(-2, keepdim=True)
    blocks = keys.split(mean, -2)
    return torch.cat([b.mean(-2, keepdim=True).expand_as(b) for b in blocks], -2)


class Attention:
    """Causal attention that gives some positions as codes; `recipe` may change between evaluations."""

    recipe = RECIPES[0]

    def __call__(self, module, query, key, value, mask, scaling, **_):
        r, group, n = self.recipe, query.shape[1] // key.shape[1], key.shape[2]
        m = mean_of(key, r.mean) if r.mean else 0
        coded_key, coded_value = coded(key - m, r.key_bits) + m, coded(value, r.value_bits)
        at = torch.arange(n)
        plain = (at < r.first)[None].expand(n, n)
        if r.open:
            plain = plain | (at[:, None] // r.open == at[None] // r.open)
        key, value, coded_key, coded_value = (x.repeat_interleave(group, 1) for x in (key, value, coded_key, coded_value))
        score = torch.where(plain, query @ key.transpose(2, 3), query @ coded_key.transpose(2, 3)) * scaling
        weight = score.masked_fill(at[None] > at[:, None], -math.inf).softmax(-1)
        out = (weight * plain) @ value + (weight * ~plain) @ coded_value
        return out.transpose(1, 2).contiguous(), None


def perplexity(model, chunks, half):
    total = 0.0
    for chunk in chunks:
        with torch.no_grad():
            logits = model(chunk[None], logits_to_keep=len(chunk) - half + 1).logits[0, :-1].double()
        total += float(torch.nn.functional.cross_entropy(logits, chunk[half:], reduction="mean"))
    return math.exp(total / len(chunks))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--bytes", type=int, default=65536)
    parser.add_argument("-c", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--ids", help="take the tokens from this file, not from TEXT")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="recipes whose name has one of these in it")
    a = parser.parse_args()
    keys, tensors = ggufio.read(a.model)
    ids = read_ids(a.ids) if a.ids else tokenise(keys, a.text, a.bytes)
    n_chunks = min(a.chunks, len(ids) // a.c)
    if n_chunks == 0:
        raise SystemExit(f"{len(ids)} tokens, fewer than one chunk of {a.c}")
    if keys.get("tokenizer.ggml.add_bos_token", False):
        ids[:n_chunks * a.c:a.c] = keys["tokenizer.ggml.bos_token_id"]
    chunks = torch.from_numpy(ids[:n_chunks * a.c].astype(np.int64)).split(a.c)
    attention, model = Attention(), load(keys, tensors)
    ALL_ATTENTION_FUNCTIONS.register("aura", attention)
    model.set_attn_implementation("aura")
    plain = perplexity(model, chunks, a.c // 2)
    print(f"{n_chunks} chunks of {a.c}, {n_chunks * (a.c - a.c // 2)} tokens scored, f16 (float32 here) {plain:.4f}\n")
    print("| recipe | perplexity | over f16 |\n| --- | --- | --- |")
    for recipe in RECIPES[1:]:
        if a.only and not any(part in recipe.name for part in a.only):
            continue
        attention.recipe = recipe
        found = perplexity(model, chunks, a.c // 2)
        print(f"| {recipe.name} | {found:.4f} | {100 * (found / plain - 1):+.2f}% |", flush=True)


if __name__ == "__main__":
    main()
