#!/usr/bin/env python3
"""From stories to models/quern-demo.gguf: all stages, or those named.

usage: recipe.py --stories stories.txt --teacher smollm2-135m-instruct-q4_1.gguf --work FOLDER --out quern-demo.gguf [STAGE...]

Stages, in this order: generate, rows, train, qat, export, report. One whose output is in the work folder is skipped, so the recipe
goes on where it stopped. --tiny runs all of them on a CPU in about a minute, for a model that knows nothing. See README.md.

Needs torch, tokenizers and numpy; a GPU for other than --tiny.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

STAGES = ("generate", "rows", "train", "qat", "export", "report")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--stories", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--minutes", type=float, nargs=3, default=(3.2, 3.5, 4), metavar=("GENERATE", "TRAIN", "QAT"))
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    a = parser.parse_args()
    unknown = [s for s in a.stages if s not in STAGES]
    if unknown:
        parser.error(f"no stage '{unknown[0]}'; there are: {' '.join(STAGES)}")

    import torch

    import export
    import generate
    import report
    import rows
    import training
    from sizes import FULL, TINY

    sizes = TINY if a.tiny else FULL
    device = torch.device("cuda" if torch.cuda.is_available() and not a.tiny else "cpu")
    os.makedirs(a.work, exist_ok=True)
    seconds = [60 * m for m in a.minutes]
    for stage in a.stages or STAGES:
        if stage == "generate":
            generate.run(a.work, sizes, a.stories, a.teacher, device, seconds[0])
        elif stage == "rows":
            rows.run(a.work, sizes)
        elif stage == "train":
            training.run(stage, a.work, sizes, device, seconds[1], sizes.steps)
        elif stage == "qat":
            training.run(stage, a.work, sizes, device, seconds[2], sizes.steps)
        elif stage == "export":
            export.run(a.work, sizes, a.out)
        else:
            report.run(a.work, sizes, device)


if __name__ == "__main__":
    main()
