"""The two sizes of the recipe: the demo model's, and a tiny one that runs through all stages on a CPU in a minute.

SPDX-License-Identifier: Apache-2.0
"""
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    # stories
    most_read: int = 10 ** 9
    teacher_layers: int = 10 ** 6
    tune_steps: int = 200
    tune_batch: int = 64
    requests: int = 520_000
    slots: int = 8192
    story_length: int = 384
    strict: bool = True
    # vocabulary and rows
    vocab: int = 4096
    row: int = 1024
    # network
    hidden: int = 512
    ff: int = 1536
    layers: int = 12
    interval: int = 4
    heads: int = 4
    kv: int = 2
    head_dim: int = 128
    n_rot: int = 32
    n_k: int = 2
    n_v: int = 4
    head_k: int = 128
    head_v: int = 128
    eps: float = 1e-6
    base: float = 10000.0
    block: int = 512
    # training
    rows_a_step: int = 64
    steps: int = 0
    tail_ids: int = 160

    @property
    def recurrent(self):
        return [(i + 1) % self.interval != 0 for i in range(self.layers)]

    @property
    def qkv(self):
        return 2 * self.n_k * self.head_k + self.n_v * self.head_v


FULL = Sizes()
# Widths of ternary matrices are multiples of the block of 128.
TINY = Sizes(most_read=300, teacher_layers=1, tune_steps=3, tune_batch=4, requests=40, slots=8, story_length=80, strict=False,
             vocab=512, row=256, hidden=128, ff=256, layers=4, heads=2, kv=1, head_dim=64, n_rot=16, n_k=2, n_v=4, head_k=32,
             head_v=32, block=128, rows_a_step=4, steps=12)
