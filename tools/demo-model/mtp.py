#!/usr/bin/env python3
"""Adds a block for multi-token prediction to a file of the recipe, whose trunk is not changed by a bit.

usage: mtp.py --model MODEL.gguf --stories stories.txt --quern build/quern --work FOLDER --out OUT.gguf [STAGE...]

Stages, in this order: texts, train, join, report. One whose output is in the work folder is skipped; --minutes says how long texts
are written and how long is trained. On two cores of a CPU; it needs torch, tokenizers and numpy. See README.md.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

STAGES = ("texts", "train", "join", "report")
WIDTH = 512
REQUESTS = 6000


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--stories", required=True)
    parser.add_argument("--quern", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--minutes", type=float, nargs=2, default=(12, 38), metavar=("TEXTS", "TRAIN"))
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    a = parser.parse_args()
    unknown = [s for s in a.stages if s not in STAGES]
    if unknown:
        parser.error(f"no stage '{unknown[0]}'; there are: {' '.join(STAGES)}")

    import torch

    import ggufio
    import mtp_block
    import mtp_export
    import mtp_report
    import mtp_texts
    import mtp_training

    torch.set_num_threads(1)  # mtp_training.py has threads of its own
    keys, tensors = ggufio.read(a.model)
    sizes = mtp_block.sizes_of(keys)
    basis = mtp_block.basis_of(keys, sizes)
    trunk = mtp_block.trunk_of(tensors, sizes, basis)
    os.makedirs(a.work, exist_ok=True)
    for stage in a.stages or STAGES:
        if stage == "texts":
            mtp_texts.run(a.work, a.stories, keys, a.quern, a.model, WIDTH, REQUESTS, 60 * a.minutes[0])
        elif stage == "train":
            mtp_training.run(a.work, sizes, trunk, basis, a.quern, a.model, 60 * a.minutes[1], torch.bfloat16)
        elif stage == "join":
            mtp_export.run(a.work, sizes, basis, a.model, a.out)
        else:
            mtp_report.run(a.work, a.quern, a.out)


if __name__ == "__main__":
    main()
