"""Attention of one new token of many sequences of different lengths, each over its own keys: as a Triton kernel, and plainly.

q [N, kv heads, group, D], keys and values [N, kv heads, L, D], length [N]: keys 0 to length - 1 of a sequence count.

SPDX-License-Identifier: Apache-2.0
"""
import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def plain(q, keys, values, length):
    scores = torch.einsum("nhgd,nhld->nhgl", q.float(), keys.float()) * q.shape[-1] ** -0.5
    hidden = torch.arange(keys.shape[2], device=q.device) >= length[:, None]
    p = scores.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1)
    return torch.einsum("nhgl,nhld->nhgd", p, values.float()).to(q.dtype)


if triton:
    @triton.jit
    def attend(q, keys, values, length, out, n_keys, scale, HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
               ROWS: tl.constexpr, BLOCK: tl.constexpr):
        """One program for a sequence and key head. The queries of a group are the rows of one small matrix, padded to ROWS."""
        which = tl.program_id(0).to(tl.int64)
        n = tl.load(length + which // HEADS)
        row, d, key = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, BLOCK)
        at = which * GROUP * DIM + row[:, None] * DIM + d[None, :]
        x = tl.load(q + at, mask=row[:, None] < GROUP, other=0.0)
        most = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DIM], tl.float32)
        base = which * n_keys * DIM
        for start in range(0, n, BLOCK):
            there = start + key < n
            place = base + (start + key)[:, None] * DIM + d[None, :]
            k = tl.load(keys + place, mask=there[:, None], other=0.0)
            v = tl.load(values + place, mask=there[:, None], other=0.0)
            s = tl.where(there[None, :], tl.dot(x, tl.trans(k)) * scale, -1e30)
            new = tl.maximum(most, tl.max(s, 1))
            p = tl.exp(s - new[:, None])
            shrink = tl.exp(most - new)
            total = total * shrink + tl.sum(p, 1)
            acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
            most = new
        tl.store(out + at, (acc / total[:, None]).to(x.dtype), mask=row[:, None] < GROUP)


def attention(q, keys, values, length):
    if not q.is_cuda or triton is None:
        return plain(q, keys, values, length)
    out = torch.empty_like(q)
    n, heads, group, dim = q.shape
    attend[(n * heads,)](q, keys, values, length, out, keys.shape[2], dim ** -0.5, heads, group, dim, 16, 64, num_warps=4)
    return out
