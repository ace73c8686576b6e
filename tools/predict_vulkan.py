#!/usr/bin/env python3
"""Predicts decode speeds of Vulkan devices that were not measured: what is left if nothing but memory and launches took
time.

usage: predict_vulkan.py [--launch-us US] [--share F] [MODEL=MB,BARRIERS ...]

    token = bytes / (share * nominal bandwidth) + barriers * cost of a launch with its barrier

US is what a launch and its barrier cost where it was measured, MB of a model the column MB/token of `quern bench`,
BARRIERS those of a token: 5 a layer (tests/unit/vulkan/test_vulkan_barriers counts them), and 3 outside of layers;
another 3 are those of sampling. No term is for arithmetic: the numbers are limits, not measurements. The last line is
of a device that was measured, to show how far a prediction is from the truth."""
import argparse

# Nominal GB/s, by the vendors' specifications.
CARDS = {"RX 7900 XTX": 960, "RX 9070 XT": 640, "Arc B580": 456, "Radeon 890M": 120, "Apple M3": 100}
MEASURED = ("H200", 4800)
MODELS = ["qwen3-8b q1_0=1065.5,186", "qwen35-27b q1_0=3915.7,326"]


def rate(mb, barriers, gb_per_s, a):
    return 1 / (mb / 1e3 / (gb_per_s * a.share) + barriers * a.launch_us * 1e-6)


def main():
    p = argparse.ArgumentParser(usage=__doc__, add_help=False)
    p.add_argument("--launch-us", type=float, default=4.5)
    p.add_argument("--share", type=float, default=1)
    p.add_argument("models", nargs="*", default=MODELS)
    a = p.parse_args()
    models = []
    for text in a.models:
        name, numbers = text.rsplit("=", 1)
        mb, barriers = numbers.split(",")
        models.append((name, float(mb), int(barriers)))
    print("| predicted, tok/s, at most | nominal GB/s | " + " | ".join(name for name, _, _ in models) + " |")
    print("| --- | ---" + " | ---" * len(models) + " |")
    for card, gb_per_s in [*CARDS.items(), MEASURED]:
        cells = [f"{rate(mb, barriers, gb_per_s, a):.0f}" for _, mb, barriers in models]
        print(f"| {card} | {gb_per_s} | " + " | ".join(cells) + " |")


main()
