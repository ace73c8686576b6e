#!/usr/bin/env python3
"""Make the golden files of the Gated DeltaNet kernels: tests/golden/gdn_*.bin.

usage: make_gdn_golden.py OUT_FOLDER

Outputs and final states are those of the naive recurrence, token by token in float64, as flash-linear-attention publishes it for
checking its kernels (naive recurrent gated delta rule): the state decays, the value is corrected by what the state recalls for the
key, the correction is written, the query reads. Where transformers is installed, its torch_recurrent_gated_delta_rule and
torch_chunk_gated_delta_rule must agree, or nothing is written.

A file is little-endian and without padding:

    u32    batch, tokens, k_heads, v_heads, head_k, head_v, tiled, normalize, n_sequences, has_initial
    u32    cumulative lengths [n_sequences + 1], if n_sequences is not 0
    bf16   q, k [batch*tokens, k_heads, head_k], v [batch*tokens, v_heads, head_v]
    f32    g, beta [batch*tokens, v_heads]
    f32    initial [sequences, v_heads, head_v, head_k], if has_initial
    f32    o [batch*tokens, v_heads, head_v]; final [sequences, v_heads, head_v, head_k]

scale is head_k^-1/2. Tokens of no sequence are NaN in what goes in and zero in o. Needs numpy; torch and transformers to compare.
The same numpy version gives the same files.

SPDX-License-Identifier: Apache-2.0
"""
import os
import sys

import numpy as np

# transformers computes in float32: some 1e-7, and up to 1e-4 where its chunks sum strong decays. A wrong head or a missing decay
# costs more than 1e-1.
MAX_DISAGREEMENT = 1e-4
L2_EPS = 1e-6

CASES = {
    "grouped": dict(batch=2, tokens=70, k_heads=1, v_heads=2, head_k=32, head_v=16, tiled=0, normalize=0, ends=[], initial=1,
                    strong=0.0, similar=0),
    "tiled": dict(batch=1, tokens=130, k_heads=2, v_heads=4, head_k=16, head_v=32, tiled=1, normalize=0, ends=[], initial=0,
                  strong=0.0, similar=1),
    "ragged": dict(batch=1, tokens=136, k_heads=2, v_heads=2, head_k=16, head_v=16, tiled=0, normalize=1,
                   ends=[0, 1, 66, 66, 133], initial=1, strong=0.1, similar=0),
}


def to_bf16(x):
    """Bits of the nearest bfloat16, ties to even; x is finite."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def recurrence(q, k, v, g, beta, state, scale):
    """One value head: q, k [n, K], v [n, V], g, beta [n], state [V, K]; all float64."""
    out = np.zeros_like(v)
    for i in range(len(q)):
        state = state * np.exp(g[i])
        corrected = beta[i] * (v[i] - state @ k[i])
        state = state + np.outer(corrected, k[i])
        out[i] = scale * (state @ q[i])
    return out, state


def spans(case):
    if case["ends"]:
        return list(zip(case["ends"][:-1], case["ends"][1:]))
    return [(i * case["tokens"], (i + 1) * case["tokens"]) for i in range(case["batch"])]


def key_head(case, head):
    return head % case["k_heads"] if case["tiled"] else head * case["k_heads"] // case["v_heads"]


def draw(case, rng):
    rows, hk, hv, dk, dv = case["batch"] * case["tokens"], case["k_heads"], case["v_heads"], case["head_k"], case["head_v"]
    q, k = rng.standard_normal((rows, hk, dk)), rng.standard_normal((rows, hk, dk))
    if case["similar"]:
        k = k[:1] + 0.05 * k
    if not case["normalize"]:
        q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    v = rng.standard_normal((rows, hv, dv))
    g = -np.exp(rng.uniform(-6, 0, (rows, hv)))
    g[rng.random((rows, hv)) < case["strong"]] = -50
    data = dict(q=to_bf16(q), k=to_bf16(k), v=to_bf16(v), g=g.astype(np.float32),
                beta=rng.uniform(0, 1, (rows, hv)).astype(np.float32))
    states = (len(spans(case)), hv, dv, dk)
    data["initial"] = (rng.standard_normal(states) * case["initial"]).astype(np.float32)
    return data


def compute(case, data):
    q, k, v = (from_bf16(data[name]).astype(np.float64) for name in "qkv")
    if case["normalize"]:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + L2_EPS) for x in (q, k))
    g, beta, initial = (data[name].astype(np.float64) for name in ("g", "beta", "initial"))
    o, final = np.zeros(v.shape), np.zeros(initial.shape)
    for s, (begin, end) in enumerate(spans(case)):
        for h in range(case["v_heads"]):
            at = slice(begin, end)
            kh = key_head(case, h)
            o[at, h], final[s, h] = recurrence(q[at, kh], k[at, kh], v[at, h], g[at, h], beta[at, h], initial[s, h],
                                               case["head_k"] ** -0.5)
    return o, final


def compare(name, case, data, o, final):
    try:
        import torch
        from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs
    except ImportError:
        return "not compared with transformers, which is not installed"
    q, k, v = (torch.from_numpy(from_bf16(data[x])) for x in "qkv")
    heads = [key_head(case, h) for h in range(case["v_heads"])]
    worst = 0.0
    for rule in (theirs.torch_recurrent_gated_delta_rule, theirs.torch_chunk_gated_delta_rule):
        for s, (begin, end) in enumerate(spans(case)):
            if begin == end:
                continue
            at = slice(begin, end)
            got, state = rule(q[None, at][:, :, heads], k[None, at][:, :, heads], v[None, at],
                              g=torch.from_numpy(data["g"])[None, at], beta=torch.from_numpy(data["beta"])[None, at],
                              initial_state=torch.from_numpy(data["initial"][s]).transpose(-1, -2)[None].contiguous(),
                              output_final_state=True, use_qk_l2norm_in_kernel=bool(case["normalize"]))
            for found, expected in ((got[0].numpy(), o[at]), (state[0].transpose(-1, -2).numpy(), final[s])):
                worst = max(worst, np.linalg.norm(found - expected) / np.linalg.norm(expected))
    if not worst <= MAX_DISAGREEMENT:
        sys.exit(f"{name}: transformers differs by {worst:.2e}, expected at most {MAX_DISAGREEMENT:.0e}")
    return f"transformers within {worst:.1e}"


def write(path, case, data, o, final):
    head = [case[x] for x in ("batch", "tokens", "k_heads", "v_heads", "head_k", "head_v", "tiled", "normalize")]
    head += [max(len(case["ends"]) - 1, 0), case["initial"]]
    if case["ends"]:
        for name, nothing in (("q", 0x7fc0), ("k", 0x7fc0), ("v", 0x7fc0), ("g", np.nan), ("beta", np.nan)):
            data[name][case["ends"][-1]:] = nothing
    with open(path, "wb") as f:
        np.array(head + case["ends"], "<u4").tofile(f)
        for name in "qkv":
            data[name].astype("<u2").tofile(f)
        for x in [data["g"], data["beta"]] + [data["initial"]] * case["initial"] + [o, final]:
            x.astype("<f4").tofile(f)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    for i, (name, case) in enumerate(CASES.items()):
        data = draw(case, np.random.Generator(np.random.PCG64(i + 1)))
        o, final = compute(case, data)
        agreement = compare(name, case, data, o, final)
        path = os.path.join(sys.argv[1], f"gdn_{name}.bin")
        write(path, case, data, o, final)
        print(f"{path}: {os.path.getsize(path)} bytes, {agreement}")


if __name__ == "__main__":
    main()
