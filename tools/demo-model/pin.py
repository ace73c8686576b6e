#!/usr/bin/env python3
"""What the tests hold models/quern-demo.gguf to, made anew after the recipe has made a new file.

usage: pin.py WORK QUERN      the recipe's work folder, and the program that was built

Writes tests/golden/demo.*: ids and the network's own logits from the recipe's report, a held-out text from its heldout.json (once; any
held-out text serves, since which ones are is a matter of their checksums), and what quern makes of them: greedy text with QN_CPU=ref,
the perplexity. Prints the perplexities of the cache formats. Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import random
import subprocess
import sys

import numpy as np

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MODEL = os.path.join(ROOT, "models", "quern-demo.gguf")
GOLDEN = os.path.join(ROOT, "tests", "golden", "demo")
N_IDS, N_ROWS = 64, 4
N_STORIES = 16
PROMPT = "One day, a little fox found a lantern"
CONTEXT = "512"
CACHES = ("f16", "aura8", "aura6", "aura4", "aura4v3", "aura4v2", "aura3", "aura2")


def main(work, quern):
    def run(*arguments, **environment):
        done = subprocess.run([quern, *arguments], env={**os.environ, **environment}, capture_output=True, check=True)
        return done.stdout.decode()

    with open(f"{work}/logits0.ids", encoding="utf-8") as f:
        ids = f.read().split()
    logits = np.fromfile(f"{work}/logits0.f32", "<f4").reshape(len(ids), -1)
    with open(GOLDEN + ".ids", "w", encoding="utf-8") as f:
        f.writelines(i + "\n" for i in ids[:N_IDS])
    logits[N_IDS - N_ROWS:N_IDS].tofile(GOLDEN + ".logits.f32")
    if not os.path.exists(GOLDEN + ".txt"):
        with open(f"{work}/heldout.json", encoding="utf-8") as f:
            written = [text for origin, text in json.load(f) if origin == "written"]
        with open(GOLDEN + ".txt", "w", encoding="utf-8") as f:
            f.write("\n\n".join(random.Random(12).sample(written, N_STORIES)) + "\n")
    for cache in ("f16", "aura4"):
        with open(f"{GOLDEN}.greedy.{cache}", "w", encoding="utf-8") as f:
            f.write(run("run", "-m", MODEL, "--kv", cache, "--temp", "0", "-n", "24", "-q", "-p", PROMPT, QN_CPU="ref") + "\n")
    for cache in CACHES:
        found = run("perplexity", "-m", MODEL, "-f", GOLDEN + ".txt", "-c", CONTEXT, "--kv", cache).split()
        value = found[found.index("perplexity:") + 1]
        print(f"{cache:8} {value}")
        if cache == "f16":
            with open(GOLDEN + ".perplexity", "w", encoding="utf-8") as f:
                f.write(value + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
