#!/usr/bin/env python3
"""Draw quern's speed beside its peers', for the README.

usage: plot_speed.py [FOLDER]     FOLDER: docs/speed, where runs.json names the files that `quern bench --format json` wrote

Writes FOLDER/speed.svg and prints its figures as a table in Markdown. Standard library only.

To measure again, write each model's figures to the file that runs.json names, for example
    quern bench -m qwen35-27b-q1_0.gguf --device cuda -p 512 -n 128 --format json  > docs/speed/h200-qwen35-27b-q1_0.json
    quern bench -m qwen35-27b-q1_0.gguf --device cuda -p 4096 -n 0 --format json  >> docs/speed/h200-qwen35-27b-q1_0.json
and the peers' from llama-bench (-p 512 -n 128 -fa 1) into runs.json.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import sys

COLOURS = {"quern": "#1f6f54", "ik_llama.cpp": "#c08a2d", "llama.cpp": "#8d99a6"}
PROGRAMS = ["quern", "ik_llama.cpp", "llama.cpp"]
BAR, GAP, LEFT, WIDTH, TEXT = 15, 12, 190, 860, 13


def test_name(line):
    return line["test"] + (f"@{line['depth']}" if line["depth"] else "")


def read(folder):
    """[(machine, model, {test: {program: tok/s}})], in the order of runs.json."""
    with open(os.path.join(folder, "runs.json")) as f:
        description = json.load(f)
    runs = []
    for run in description["runs"]:
        tests = {}
        with open(os.path.join(folder, run["file"])) as f:
            for line in map(json.loads, filter(str.strip, f)):
                tests[test_name(line)] = {"quern": line["tok_per_s"]["median"]}
        for program, figures in run["peers"].items():
            for test, rate in figures.items():
                if test in tests:
                    tests[test][program] = rate
        runs.append((description["machines"][run["machine"]], run["model"], tests))
    return runs


def is_decode(test):
    return test.startswith("tg")


def wording(test):
    name, _, depth = test.partition("@")
    if depth:
        return f"decode at depth {depth}, 4-bit KV"
    return f"decode, {name[2:]} tokens" if is_decode(name) else f"prefill, {name[2:]} tokens"


def number(rate):
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def markdown(runs):
    print("| machine | model | test | quern | ik_llama.cpp | llama.cpp | ratio |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for machine, model, tests in runs:
        for test, rates in tests.items():
            peers = [rates[p] for p in PROGRAMS[1:] if p in rates]
            cells = [number(rates[p]) if p in rates else "" for p in PROGRAMS]
            ratio = f"{rates['quern'] / max(peers):.1f} x" if peers else ""
            print(f"| {machine} | {model} | {wording(test)} | {' | '.join(cells)} | {ratio} |")


def svg(runs):
    """One group of bars a model and test; each group has its own scale, its longest bar as wide as the others' longest."""
    out, y, last = [], 44, None
    for machine, model, tests in runs:
        if machine != last:
            y += 10
            out.append(f'<text x="16" y="{y + TEXT}" font-weight="bold">{machine}</text>')
            y += TEXT + 14
            last = machine
        for test, rates in tests.items():
            shown = [p for p in PROGRAMS if p in rates]
            if len(shown) < 2:
                continue
            out.append(f'<text x="16" y="{y + TEXT - 2}">{model}</text>')
            out.append(f'<text x="16" y="{y + 2 * TEXT}" class="small">{wording(test)}</text>')
            for i, program in enumerate(shown):
                width = max(2, (WIDTH - LEFT - 250) * rates[program] / max(rates.values()))
                top = y + i * (BAR + 2)
                out.append(f'<rect x="{LEFT + 60}" y="{top}" width="{width:.1f}" height="{BAR}" fill="{COLOURS[program]}"/>')
                out.append(f'<text x="{LEFT + 66 + width:.1f}" y="{top + BAR - 3}" class="small">'
                           f"{number(rates[program])} {program}</text>")
            y += max(2 * TEXT + 4, len(shown) * (BAR + 2)) + GAP
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 10}" font-family="sans-serif" '
            f'font-size="{TEXT}" role="img" aria-label="Tokens a second of quern, ik_llama.cpp and llama.cpp">\n'
            "<style>.small{font-size:11px} text{fill:#222} @media (prefers-color-scheme: dark){text{fill:#ddd}}</style>\n"
            '<text x="16" y="28" font-size="16" font-weight="bold">Tokens a second, 1-bit models (Q1_0)</text>')
    return head + "\n" + "\n".join(out) + "\n</svg>\n"


def main():
    if len(sys.argv) > 2 or (len(sys.argv) == 2 and sys.argv[1].startswith("-")):
        sys.exit(__doc__)
    folder = sys.argv[1] if len(sys.argv) == 2 else os.path.join(os.path.dirname(__file__), "..", "docs", "speed")
    runs = read(folder)
    with open(os.path.join(folder, "speed.svg"), "w") as f:
        f.write(svg(runs))
    markdown(runs)


if __name__ == "__main__":
    main()
