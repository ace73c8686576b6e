#!/usr/bin/env python3
"""Draws the timeline of docs/internals/persistent-decode.md as persistent-decode.svg, from the measured times in that page.

usage: python3 tools/plot_timeline.py

Reads the first table after the line "<!-- timeline -->": one row a phase, µs of prologue, MMA loop, reduction, grid barrier.
Needs the standard library only.

SPDX-License-Identifier: Apache-2.0
"""
import os
from xml.sax.saxutils import escape

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "internals", "persistent-decode.md")
STEPS = ("prologue", "MMA loop", "reduction", "grid barrier")
COLOURS = {"prologue": "#e9b872", "MMA loop": "#4c8c5b", "reduction": "#8fb4d9", "grid barrier": "#c2c2c2",
           "delta rule": "#a97bb5", "ring": "#d7ead7", "poll": "#c65b4b", "prefetch": "#d9a5c7", "schedule": "#8a6d3b"}
LEFT, TOP, WIDTH, LANE, GAP = 150, 70, 1000, 36, 12

# What each lane does in a step of a GEMV phase, then in one of the delta rule: (text, colour).
LANES = (
    ("GEMV warps",
     {"prologue": ("prologue", "prologue"), "MMA loop": ("b1 MMA", "MMA loop"), "reduction": ("", "reduction"),
      "grid barrier": ("", "grid barrier")},
     {"prologue": ("delta rule", "delta rule"), "grid barrier": ("store S", "delta rule")}),
    ("scheduler warp",
     {"prologue": ("prologue", "prologue"), "MMA loop": ("b1 MMA", "MMA loop"), "reduction": ("", "reduction"),
      "grid barrier": ("", "schedule")},
     {"prologue": ("delta rule", "delta rule"), "grid barrier": ("", "schedule")}),
    ("barrier warp",
     {"prologue": ("prologue", "prologue"), "MMA loop": ("L2 prefetch; no weights", "prefetch"),
      "reduction": ("", "reduction"), "grid barrier": ("", "poll")},
     {"prologue": ("delta rule", "delta rule"), "grid barrier": ("store, poll", "poll")}),
    ("weight ring",
     {"prologue": ("5 steps", "ring"), "MMA loop": ("consume, issue", "MMA loop"), "reduction": ("", "ring"),
      "grid barrier": ("", "ring")},
     {"prologue": ("5 steps", "ring"), "grid barrier": ("5 steps", "ring")}),
)
LEGEND = (("prologue", "prologue: reduce partials, norm, quantise to bit planes"),
          ("MMA loop", "MMA loop: weights consumed and issued"),
          ("delta rule", "delta rule phase"), ("reduction", "reduction over K-tiles, store partials"),
          ("schedule", "scheduler warp: next work descriptor"), ("poll", "barrier warp: arrive (release), poll (acquire)"),
          ("prefetch", "barrier warp: prefetch into L2"), ("grid barrier", "blocked at the grid barrier"),
          ("ring", "ring: 5 steps of the next GEMV in flight or arrived, no new loads"))


def read_table(path):
    """[(phase, {step: µs})], in order."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("<!-- timeline -->", 1)[1].strip().splitlines()
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[:lines.index("")]]
    header, phases = rows[0], []
    for row in rows[2:]:
        cells = dict(zip(header, row))
        phases.append((cells["phase"], {step: float(cells[step]) for step in STEPS if cells[step]}))
    return phases


def rect(x, y, width, height, fill, text="", size=11):
    out = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{fill}" stroke="#ffffff"/>']
    if text and width > 6.0 * len(text) + 4:
        dark = fill in (COLOURS["MMA loop"], COLOURS["poll"], COLOURS["schedule"], COLOURS["delta rule"])
        out.append(f'<text x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" font-size="{size}" text-anchor="middle" '
                   f'fill="{"#ffffff" if dark else "#222222"}">{escape(text)}</text>')
    return out


def label(x, y, text, anchor="start", size=12, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
            f'fill="#222222">{escape(text)}</text>')


def draw(phases):
    total = sum(sum(steps.values()) for _, steps in phases)
    scale = WIDTH / total
    bottom = TOP + len(LANES) * (LANE + GAP)
    height = bottom + 50 + (len(LEGEND) + 1) // 2 * 20 + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" '
           'font-family="DejaVu Sans, sans-serif">',
           '<title>Timeline of one Gated DeltaNet layer in the persistent decode kernel</title>',
           f'<rect width="{LEFT + WIDTH + 30}" height="{height}" fill="#ffffff"/>',
           label(LEFT, 22, f"One Gated DeltaNet layer of a 27B model, Q1_0, H200: {len(phases)} phases, {total:.1f} µs",
                 size=14, weight="bold")]
    for i, (name, _, _) in enumerate(LANES):
        out.append(label(LEFT - 10, TOP + i * (LANE + GAP) + LANE / 2 + 4, name, "end"))
    x = float(LEFT)
    for phase, steps in phases:
        begin, is_gemv = x, "MMA loop" in steps
        for step in (s for s in STEPS if s in steps):
            width = steps[step] * scale
            for i, (_, gemv, delta) in enumerate(LANES):
                text, colour = (gemv if is_gemv else delta)[step]
                out += rect(x, TOP + i * (LANE + GAP), width, LANE, COLOURS[colour], text)
            x += width
        out.append(label((begin + x) / 2, TOP - 22, phase, "middle", 12, "bold"))
        out.append(label((begin + x) / 2, TOP - 8, f"{sum(steps.values()):.1f} µs", "middle", 11))
        out.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#222222" stroke-width="1.5" '
                   'stroke-dasharray="4 3"/>')
    out.append(f'<line x1="{LEFT}" y1="{bottom + 6}" x2="{LEFT + WIDTH}" y2="{bottom + 6}" stroke="#222222"/>')
    for t in range(0, int(total) + 1, 5):
        at = LEFT + t * scale
        out.append(f'<line x1="{at:.1f}" y1="{bottom + 6}" x2="{at:.1f}" y2="{bottom + 11}" stroke="#222222"/>')
        out.append(label(at, bottom + 25, f"{t} µs", "middle", 11))
    for i, (colour, text) in enumerate(LEGEND):
        at_x, at_y = LEFT + i % 2 * WIDTH / 2, bottom + 44 + i // 2 * 20
        out += rect(at_x, at_y, 14, 14, COLOURS[colour])
        out.append(label(at_x + 20, at_y + 11, text, size=12))
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    path = PAGE[:-len(".md")] + ".svg"
    with open(path, "w", encoding="utf-8") as f:
        f.write(draw(read_table(PAGE)))
    print(path)


if __name__ == "__main__":
    main()
