#!/usr/bin/env python3
"""Make tests/golden/blocks.bin: random blocks of the weight formats that quern only reads, and the weights that the gguf package
of llama.cpp dequantises them to. tests/unit/quant/test_quant.c compares them bit for bit.

usage: make_quant_golden.py tests/golden/blocks.bin

For each format: four u32 (number of the type, blocks, bytes and weights of a block), the blocks, the weights in f32; all
little-endian. Scales are finite: a block with another weight is drawn again.

Needs numpy and gguf (made with gguf 0.19.0).

SPDX-License-Identifier: Apache-2.0
"""
import struct
import sys

import gguf
import numpy as np

TYPES = ("Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4")
N_BLOCKS = 12


def draw(kind, rng):
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks, weights = [], []
    while len(blocks) < N_BLOCKS:
        block = rng.integers(0, 256, n_bytes, np.uint8)
        with np.errstate(all="ignore"):
            values = gguf.quants.dequantize(block, kind).astype("<f4")
        if np.isfinite(values).all():
            blocks.append(block)
            weights.append(values)
    head = struct.pack("<4I", int(kind), N_BLOCKS, n_bytes, n_weights)
    return head + b"".join(b.tobytes() for b in blocks) + b"".join(w.tobytes() for w in weights)


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    rng = np.random.default_rng(39)
    with open(sys.argv[1], "wb") as f:
        for name in TYPES:
            f.write(draw(gguf.GGMLQuantizationType[name], rng))


if __name__ == "__main__":
    main()
