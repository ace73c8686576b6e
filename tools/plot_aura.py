#!/usr/bin/env python3
"""The figures of docs/aura.md: measures with a built quern, keeps the numbers in docs/aura.json, draws docs/aura.png from them.

usage: plot_aura.py --quern BUILD/quern --model SmolLM2-135M=smollm2.gguf=text.txt --speed Qwen3-1.7B=qwen3-1.7b-q1_0.gguf
       plot_aura.py --plot-only

  --model NAME=FILE=TEXT   quern perplexity over the first --bytes of TEXT, for each cache format and each of --contexts
  --speed NAME=FILE        quern bench -n 32 for each format and each of --depths
Both may be given several times, and --formats, --contexts and --depths say less than all. A figure that the JSON has already is
not measured again, unless --again: so one that was disturbed can be taken out, and a long measurement be stopped. --with is put
before every command that is timed, e.g. "chrt -f 50" on a machine that others use as well.

Needs matplotlib.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import json
import os
import re
import shlex
import subprocess

FORMATS = {"f16": (16, 16), "aura8": (8, 8), "aura6": (6, 6), "aura4": (4, 4), "aura4v3": (4, 3), "aura4v2": (4, 2),
           "aura3": (3, 3), "aura2": (2, 2)}
# Layers with attention, key-value heads, values of a head.
SHAPES = {"SmolLM2-135M": (30, 3, 64), "Qwen3-1.7B": (28, 8, 128), "Qwen3.5-27B": (16, 4, 256)}
DOCS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs")


def row_bytes(bits, dim):
    return 2 * dim if bits == 16 else 4 * -(-bits * dim // 32) + 4


def position_bytes(kv, shape):
    """Bytes of one position, of a cache of codes as codes."""
    layers, heads, dim = shape
    return layers * heads * sum(row_bytes(bits, dim) for bits in FORMATS[kv])


def f16_bytes(shape):
    """What a cache of codes has besides: the first 64 positions, on average half of an open run, and the mean of keys."""
    layers, heads, dim = shape
    return layers * heads * ((64 + 32) * 2 * 2 * dim + 4 * dim)


def output_of(command):
    print("+", " ".join(command), flush=True)
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def measure_quality(a, data, save):
    for given in a.model:
        name, file, text = given.split("=")
        for c in a.contexts:
            at = data["perplexity"].setdefault(name, {}).setdefault(str(c), {})
            for kv in a.formats:
                if kv in at and not a.again:
                    continue
                out = output_of([a.quern, "perplexity", "-m", file, "-f", text, "--limit-bytes", str(a.bytes), "-c", str(c),
                                 "-t", str(a.threads), "--kv", kv])
                value, error, n = re.search(r"perplexity: ([\d.]+) \+/- ([\d.]+) \((\d+) tokens\)", out).groups()
                at[kv] = {"perplexity": float(value), "standard_error": float(error), "n_tokens": int(n)}
                save()


def measure_speed(a, data, save):
    for given in a.speed:
        name, file = given.split("=")
        for depth in a.depths:
            at = data["speed"].setdefault(name, {}).setdefault(str(depth), {})
            for kv in a.formats:
                if kv in at and not a.again:
                    continue
                out = output_of(shlex.split(a.before) + [a.quern, "bench", "-m", file, "-p", "0", "-n", "32", "-d", str(depth),
                                                         "-t", str(a.threads), "--kv", kv, "--format", "json"])
                test = json.loads(out.splitlines()[-1])
                at[kv] = {"tok_per_s": test["tok_per_s"], "read_gb_per_s": test["read_gb_per_s"], "threads": test["threads"],
                          "bytes_per_token": test["bytes_per_token"]}
                save()


def draw(data, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 8, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False})
    fig, (quality, memory, speed) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")

    for name, contexts in data["perplexity"].items():
        for c, at in contexts.items():
            over = {kv: (sum(FORMATS[kv]) / 2, 100 * (at[kv]["perplexity"] / at["f16"]["perplexity"] - 1)) for kv in at if kv != "f16"}
            same = sorted(over[kv] for kv in over if len(set(FORMATS[kv])) == 1)
            line, = quality.plot(*zip(*same), "o-", ms=4, lw=1, label=f"{name}, {c} tokens")
            mixed = [over[kv] for kv in over if len(set(FORMATS[kv])) == 2]
            if mixed:
                quality.plot(*zip(*mixed), "x", ms=5, color=line.get_color())
    quality.axhline(0, color="k", lw=0.8)
    quality.set_yscale("symlog", linthresh=0.1)
    quality.set(xlabel="bits for each value, mean of keys and values", ylabel="perplexity over f16, %",
                title="Quality (x: fewer bits for values)", ylim=(-0.05, 20))
    if data["perplexity"]:
        quality.legend()

    names = list(FORMATS)
    for i, (name, shape) in enumerate(SHAPES.items()):
        memory.bar([k + 0.27 * (i - 1) for k in range(len(names))], [position_bytes(kv, shape) / 1e3 for kv in names], 0.25,
                   label=name)
    memory.set_xticks(range(len(names)), names, rotation=45)
    memory.set(ylabel="MB for 1000 tokens", title="Memory")
    memory.legend()

    for name, depths in data["speed"].items():
        for kv in FORMATS:
            points = [(int(d), at[kv]["tok_per_s"]["median"]) for d, at in depths.items() if kv in at]
            if points:
                speed.plot(*zip(*sorted(points)), "s--" if kv == "f16" else "o-", ms=3, lw=1, color="k" if kv == "f16" else None,
                           label=kv)
        speed.set(xlabel="tokens of context", ylabel="tokens a second", title=f"Decoding, {name} q1_0, 2 threads", ylim=(0, None))
    if data["speed"]:
        speed.legend(ncols=2)
    fig.savefig(path, dpi=110)
    plt.close(fig)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quern", default="build/quern")
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FILE=TEXT")
    parser.add_argument("--speed", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--contexts", nargs="+", type=int, default=[512, 2048])
    parser.add_argument("--depths", nargs="+", type=int, default=[0, 1024, 4096, 8192])
    parser.add_argument("--bytes", type=int, default=65536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--with", dest="before", default="", metavar="COMMAND")
    parser.add_argument("--again", action="store_true", help="measure what the JSON has already")
    parser.add_argument("--plot-only", action="store_true")
    parser.add_argument("--json", default=os.path.join(DOCS, "aura.json"))
    parser.add_argument("--png", default=os.path.join(DOCS, "aura.png"))
    a = parser.parse_args()
    data = {"perplexity": {}, "speed": {}}
    if os.path.exists(a.json):
        with open(a.json) as f:
            data = json.load(f)

    def save():
        data["bytes_per_1000_tokens"] = {name: {kv: 1000 * position_bytes(kv, shape) for kv in FORMATS}
                                         for name, shape in SHAPES.items()}
        data["f16_bytes"] = {name: f16_bytes(shape) for name, shape in SHAPES.items()}
        with open(a.json + ".new", "w") as f:
            json.dump(data, f, indent=1)
            f.write("\n")
        os.replace(a.json + ".new", a.json)

    if not a.plot_only:
        measure_quality(a, data, save)
        measure_speed(a, data, save)
        save()
    draw(data, a.png)


if __name__ == "__main__":
    main()
