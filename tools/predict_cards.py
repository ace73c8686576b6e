#!/usr/bin/env python3
"""Predicts the speed of decoding on cards that were not measured.

usage: predict_cards.py RUN.jsonl

The model of a token in the persistent decode kernel. In each phase all memory traffic but the weights' waits: for the
prologue, the reduction and the grid barrier (serial cycles), while the rings fill, up to their capacity. Then the weights
stream at the rate of memory, or of the multiplication if that takes longer:

    phase  = serial + max((bytes - min(rings, serial * rate)) / rate, pairs * cycles / (SMs * clock))
    token  = sum of the phases + logits and sampler

serial is a GEMV phase's; a delta or attention phase has a serial time of its own, no weights, and an even part of the bytes
of a token that are not weights (state, caches; bytes_per_token of the run). Their four constants,
and the cycles of a pair of row tile and K tile by binary MMA and by int8 MMA, are fitted to RUN.jsonl: lines that hold
name, limits (QN_CUDA_LIMITS), model, mode and r, an object of `quern bench --format json` of one GPU under those limits.
Rates of cards are their nominal bandwidth times the fraction of the nominal bandwidth that this GPU reads.

Cycles are assumed to be the same on all cards, at their boost clocks."""
import json
import sys

# Of the GPU of the run: an H200.
CLOCK, NOMINAL = 1.98e9, 4.8e12

# Shapes: rows by columns of the GEMVs of a layer, in order; other phases of a layer; number of such layers; output matrix.
MODELS = {
    "qwen35-27b": ([(48, [(16384 + 96, 5120), (5120, 6144), (34816, 5120), (5120, 17408)], 1),
                    (16, [(14336, 5120), (5120, 6144), (34816, 5120), (5120, 17408)], 1)], (248320, 5120)),
    "qwen3-8b": ([(36, [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)], 1)], (151936, 4096)),
    "qwen3-1.7b": ([(28, [(4096, 2048), (2048, 2048), (12288, 2048), (2048, 6144)], 1)], (151936, 2048)),
}
TYPES = {"q1_0": (1, 144 / 1024), "pq2_0": (2, 272 / 1024)}  # bits, bytes of a weight

OTHER_BYTES = {}  # of a token of a model of the run, but for its weights

# Name: SMs, GB/s, boost clock in GHz, KiB of shared memory, compute capability (vendor's specifications).
CARDS = {
    "RTX 3060": (28, 360, 1.78, 99, 8.6),
    "RTX 4070": (46, 504, 2.48, 99, 8.9),
    "RTX 4090": (128, 1008, 2.52, 99, 8.9),
    "RTX 5060 Ti": (36, 448, 2.57, 99, 12.0),
    "RTX 5090": (170, 1792, 2.41, 99, 12.0),
}


def ring_bytes(shared, planes):
    """Of an SM: stages times warps times 2304 bytes (src/cuda/kernels/persistent/variants.def)."""
    return (5 * 15 if shared >= 227 else 3 * 15 if shared >= 163 else 2 * 14) * 2304


def weights_of(model, kind):
    """Bytes of all weights of a token."""
    layers, output = MODELS[model]
    shapes = [(count, shape) for count, gemvs, _ in layers for shape in gemvs] + [(1, output)]
    return sum(count * rows * cols for count, (rows, cols) in shapes) * TYPES[kind][1]


def token_seconds(model, kind, sms, rate, clock, shared, capability, c):
    layers, output = MODELS[model]
    other_bytes = OTHER_BYTES[model] / sum(count for count, _, _ in layers)
    bits, weight_bytes = TYPES[kind]
    planes = capability < 10
    rings = sms * ring_bytes(shared, planes)
    pair = bits * (c["planes"] if planes else c["int8"]) / clock / sms
    serial, other = c["serial"] / clock, c["other"] / clock
    total = output[0] * output[1] * weight_bytes / rate + c["tail"]
    for count, gemvs, others in layers:
        seconds = others * (other + other_bytes / rate)
        filled = min(rings, other * rate)  # by the phase before the second GEMV
        for i, (rows, cols) in enumerate(gemvs):
            size = rows * cols * weight_bytes
            hidden = min(rings, serial * rate + (filled if i == 1 else 0), size)
            seconds += serial + max((size - hidden) / rate, rows / 16 * cols / 256 * pair)
        total += count * seconds
    return total


def limits_of(text):
    """SMs, KiB and capability of QN_CUDA_LIMITS; an H200 without."""
    words = text.split(",")
    values = dict(w.split("=") for w in words[1:])
    return int(values.get("sms", 132)), int(values.get("shared", 227)), float(words[0] or 9)


def read_run(path):
    runs = []
    for line in open(path):
        run = json.loads(line)
        if run["mode"] != "persistent":
            continue
        preset, kind = run["model"].rsplit("-", 1)
        sms, shared, capability = limits_of(run["limits"])
        rate = run["r"]["read_gb_per_s"] * 1e9
        OTHER_BYTES[preset] = max(0, run["r"]["bytes_per_token"] - weights_of(preset, kind))
        runs.append((preset, kind, sms, rate, CLOCK, shared, capability, 1 / run["r"]["tok_per_s"]["median"]))
    return runs


def error_of(runs, c):
    return sum((token_seconds(*run[:-1], c) / run[-1] - 1) ** 2 for run in runs)


def fit(runs):
    c = {"serial": 5000.0, "other": 5000.0, "tail": 4e-5, "planes": 24.0, "int8": 40.0}
    step, best = 1.3, error_of(runs, c)
    while step > 1.002:
        improved = False
        for name in c:
            for factor in (step, 1 / step):
                other = dict(c, **{name: c[name] * factor})
                error = error_of(runs, other)
                if error < best:
                    c, best, improved = other, error, True
        step = step if improved else step ** 0.5
    return c


def main():
    runs = read_run(sys.argv[1])
    c = fit(runs)
    print("constants: " + ", ".join(f"{name} {value:.3g}" for name, value in c.items()))
    print(f"{'measured':34s}{'tok/s':>8s}{'model':>8s}")
    for run in runs:
        print(f"{run[0]} {run[1]}, {run[2]} SMs, {run[5]} KiB, {run[6]}".ljust(34) +
              f"{1 / run[-1]:8.0f}{1 / token_seconds(*run[:-1], c):8.0f}")
    fraction = max(run[3] for run in runs) / NOMINAL
    print(f"\npredicted, tok/s ({fraction:.0%} of the nominal bandwidth)")
    names = [(m, k) for m in OTHER_BYTES for k in TYPES]
    print("| card | " + " | ".join(f"{m} {k}" for m, k in names) + " |")
    for card, (sms, bandwidth, clock, shared, capability) in CARDS.items():
        cells = [1 / token_seconds(m, k, sms, bandwidth * 1e9 * fraction, clock * 1e9, shared, capability, c) for m, k in names]
        print(f"| {card} | " + " | ".join(f"{x:.0f}" for x in cells) + " |")


main()
