#!/usr/bin/env python3
"""Decorates all float arithmetic in SPIR-V as NoContraction: it is not fused by drivers.

spirv-opt copies instructions when it unrolls loops, but not this decoration, which `precise` is. Reads and writes words
as glslc -mfmt=num does.
"""

import re
import sys

DECORATE, NO_CONTRACTION = 71, 42
F_ADD, F_SUB, F_MUL, F_DIV, VECTOR_TIMES_SCALAR = 129, 131, 133, 136, 142
ARITHMETIC = {F_ADD, F_SUB, F_MUL, F_DIV, VECTOR_TIMES_SCALAR}
ANNOTATIONS = {71, 72, 73, 74, 75, 332, 5632, 5633}  # OpDecorate and its like


def instructions(words):
    at = 5
    while at < len(words):
        n = words[at] >> 16
        yield words[at : at + n]
        at += n


def decorate(words):
    results, decorated = [], set()
    for i in instructions(words):
        op = i[0] & 0xFFFF
        if op in ARITHMETIC:
            results.append(i[2])
        elif op == DECORATE and i[2] == NO_CONTRACTION:
            decorated.add(i[1])
    missing = [r for r in results if r not in decorated]
    out, in_annotations = words[:5], False
    for i in instructions(words):
        is_annotation = i[0] & 0xFFFF in ANNOTATIONS
        if in_annotations and not is_annotation:
            for r in missing:
                out += [3 << 16 | DECORATE, r, NO_CONTRACTION]
            missing = []
        in_annotations = is_annotation
        out += i
    return out


def main():
    words = decorate([int(word, 16) for word in re.findall(r"0x[0-9a-f]+", sys.stdin.read())])
    for i in range(0, len(words), 4):
        print("".join(f"0x{word:08x}," for word in words[i : i + 4]))


main()
