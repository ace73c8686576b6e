#!/usr/bin/env python3
"""Make tests/golden/scheduler.gguf: a model whose evaluation costs little and whose layers have caches as large as the demo model's.

usage: make_scheduler_model.py models/quern-demo.gguf tests/golden/scheduler.gguf

Tests of the scheduler draw thousands of tokens; which ones does not matter. The model has random binary weights and the demo
model's heads, states and tokeniser, so a layer's pages and states and the vocabulary have the same sizes, but a width of 128 and
a third of the layers: a thirtieth of the arithmetic.

Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import sys

import numpy as np

import ggufio
import golden_qwen35

SHAPE = dict(golden_qwen35.LOW, recurrent=[1, 1, 1, 0], heads=4, kv=2, head_dim=128, n_rot=32, n_k=2, n_v=4, head_k=128,
             head_v=128, tied=True, base=1e4)


def main(demo, path):
    demo_keys, _ = ggufio.read(demo)
    own = {key: value for key, value in demo_keys.items() if key.startswith("tokenizer.")}
    shape = dict(SHAPE, vocab=len(own["tokenizer.ggml.tokens"]))
    rng = np.random.default_rng(1)
    keys = golden_qwen35.keys_of(shape, "scheduler", rng)
    keys["general.name"] = "scheduler"
    keys["qwen35.context_length"] = demo_keys["qwen35.context_length"]
    keys.update(own)
    ggufio.write(path, keys, golden_qwen35.draw(shape, "q1_0", rng))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
