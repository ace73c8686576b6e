#!/usr/bin/env python3
"""Golden data of the AURA kernels: codebooks, and rows encoded by the definition, in float64.

    python tools/make_aura_golden.py tests/golden/aura.bin

Needs numpy alone. The file is little-endian:

    codebooks   for dim in 64 80 96 128 192 256 512, for bits in 2 3 4 6 8: the positive half, 2^(bits-1) f64, ascending
    rotation    [80, 80] f32
    rows        [6, 80] f32: one of them tiny, one large
    encoded     for bits in 2 3 4 6 8: boundaries [2^bits - 1] f32, codebook [2^bits] f32, words [6, ceil(80 bits / 32)] u32,
                scales [6] f64

No rotated component lies within 1e-5 of a boundary (1e-6 with 8 bits), so that float32 arithmetic finds the same codes.

SPDX-License-Identifier: Apache-2.0
"""

import sys

import numpy as np

DIMS = [64, 80, 96, 128, 192, 256, 512]
BITS = [2, 3, 4, 6, 8]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)


def moments(low, high, dim):
    """Mass and mean of (1 - x^2)^((dim-3)/2) in each [low, high], four panels a cell."""
    high = np.minimum(high, low + 16 / np.sqrt(dim))
    edges = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 5)
    half = np.diff(edges, axis=1)[..., None] / 2
    x = (edges[:, :-1, None] + edges[:, 1:, None]) / 2 + half * NODES
    f = np.exp((dim - 3) / 2 * np.log1p(-x * x)) * half * WEIGHTS
    mass = f.sum((1, 2))
    return mass, (f * x).sum((1, 2)) / mass


def gap(c, dim):
    middle = (c[:-1] + c[1:]) / 2
    return c - moments(np.concatenate([[0.0], middle]), np.concatenate([middle, [1.0]]), dim)[1]


def codebook(dim, bits):
    """The fixed point of Lloyd's iteration, by Newton's method with a Jacobian of central differences."""
    n = 2 ** (bits - 1)
    c = np.sort(np.abs(np.linspace(0, 1, n + 1)[:-1] + 0.5 / n)) * (0.9 + 0.52 * bits) / np.sqrt(dim)
    for _ in range(300):
        c = c - gap(c, dim)
    for _ in range(12):
        r = gap(c, dim)
        h = 1e-6 / np.sqrt(dim)
        jacobian = np.zeros((n, n))
        for first in range(3):  # a centroid moves the means of its neighbours alone: every third at a time
            step = np.zeros(n)
            step[first::3] = h
            slope = (gap(c + step, dim) - gap(c - step, dim)) / (2 * h)
            for j in range(first, n, 3):
                rows = slice(max(0, j - 1), min(n, j + 2))
                jacobian[rows, j] = slope[rows]
        c = c - np.linalg.solve(jacobian, r)
    assert np.abs(gap(c, dim)).max() < 1e-13 and (np.diff(c) > 0).all(), (dim, bits)
    return c


def pack(codes, bits):
    """The bit string, lowest bit of the first code first, in words of 32."""
    string = ((codes[:, :, None] >> np.arange(bits)) & 1).reshape(len(codes), -1)
    string = np.pad(string, ((0, 0), (0, -string.shape[1] % 32))).reshape(len(codes), -1, 32)
    return (string.astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(2).astype("<u4")


def main(path):
    rng = np.random.default_rng(20250607)
    dim = 80
    out, books = [], {}
    for d in DIMS:
        for b in BITS:
            books[d, b] = codebook(d, b)
            out.append(books[d, b].astype("<f8"))
    rotation = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype("<f4")
    levels = {}
    for b in BITS:
        c = books[dim, b]
        book = np.concatenate([-c[::-1], c])
        levels[b] = ((book[:-1] + book[1:]) / 2).astype("<f4"), book.astype("<f4")
    rows = []
    while len(rows) < 6:
        x = (rng.standard_normal(dim) * [1, 3e-6, 1e4, 0.1, 1, 1][len(rows)]).astype("<f4")
        y = rotation.astype(float) @ (x.astype(float) / np.linalg.norm(x.astype(float)))
        if min(np.abs(y[:, None] - levels[b][0].astype(float)).min() for b in (2, 3, 4, 6)) > 1e-5 and np.abs(
            y[:, None] - levels[8][0].astype(float)
        ).min() > 1e-6:
            rows.append(x)
    rows = np.array(rows)
    out += [rotation, rows]
    norm = np.linalg.norm(rows.astype(float), axis=1)
    y = (rows.astype(float) / norm[:, None]) @ rotation.astype(float).T
    for b in BITS:
        boundaries, book = levels[b]
        codes = (y[:, :, None] > boundaries.astype(float)).sum(2)
        scales = norm / np.linalg.norm(book.astype(float)[codes], axis=1)
        out += [boundaries, book, pack(codes, b), scales.astype("<f8")]
    with open(path, "wb") as f:
        for a in out:
            f.write(np.ascontiguousarray(a).tobytes())


main(sys.argv[1])
