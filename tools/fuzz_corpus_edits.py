#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets whose inputs are no text.

    python3 tools/fuzz_corpus_edits.py tests/fuzz/corpus

model, vocab, quantize and graft: edits of a GGUF file, as tests/fuzz/gguf_edits.h reads them. cubin: files of the cache of kernels.
"""
import os
import struct
import sys

VALUE, TYPE, ELEMENT, COUNT, SWAP, RENAME, REMOVE, NEW = range(8)
DIM, N_DIMS, TENSOR_TYPE, OFFSET, TENSOR_NAME, REMOVE_TENSOR, REPLACE_DIM, POKE, NEW_TENSOR = range(8, 17)
KEEP_LAYOUT, ZEROS, POKES, CUT = 1, 2, 4, 8
INTEGERS = {n: i for i, n in enumerate([0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 32, 48, 63, 64, 65, 96, 127, 128])}
OTHER_TEXT = 255  # the length and the bytes follow


def text(value):
    return bytes([OTHER_TEXT, len(value)]) + value


def number(n):
    return bytes([INTEGERS[n]])


EDITS = {
    "dim_smaller": (0, bytes([REPLACE_DIM, 0, 0]) + number(64)),
    "dim_larger": (0, bytes([REPLACE_DIM, 0, 0]) + number(128)),
    "dim_odd": (ZEROS, bytes([REPLACE_DIM, 3, 1]) + number(17)),
    "rows_fewer": (0, bytes([REPLACE_DIM, 0, 1]) + number(1)),
    "second_dim": (ZEROS, bytes([REPLACE_DIM, 4, 1]) + number(96)),
    "type_f32": (ZEROS, bytes([TENSOR_TYPE, 2, 0])),
    "type_f16": (ZEROS, bytes([TENSOR_TYPE, 3, 1, TENSOR_TYPE, 4, 2])),
    "type_q8": (ZEROS, bytes([TENSOR_TYPE, 2, 3, TENSOR_TYPE, 5, 4])),
    "dims": (KEEP_LAYOUT, bytes([DIM, 1, 0]) + number(8) + bytes([N_DIMS, 2, 4])),
    "offset": (KEEP_LAYOUT, bytes([OFFSET, 1]) + number(1)),
    "without": (0, bytes([REMOVE_TENSOR, 0])),
    "twice": (0, bytes([NEW_TENSOR, 1]) + text(b"blk.0.x")),
    "named": (0, bytes([TENSOR_NAME, 1, 8])),
    "weights": (0, bytes([POKE, 0, 9, 0, 0, 255, POKE, 2, 3, 0, 0, 127])),
    "poked": (POKES, bytes([2, 1, 20, 1, 0])),
    "cut": (CUT, bytes([0, 16, 0])),
}


def keys(n):
    """Each key with another value, a few with another type, without it, under another name."""
    for i in range(n):
        yield f"value_{i}", (0, bytes([VALUE, i, 3 + i % 5, 0, 1, 2]))
    for i in range(0, n, 3):
        yield f"type_{i}", (0, bytes([TYPE, i, i % 13, 1, 2, 3]))
        yield f"array_{i}", (0, bytes([COUNT, i, 2, 0, 9, 0, ELEMENT, i, 1, 0]) + text(b"a b") + bytes([SWAP, i, 0, 0, 1]))
    yield "without_key", (0, bytes([REMOVE, 3]))
    yield "new_key", (0, bytes([NEW, 0, 60, 4, 8, RENAME, 2, 44]))


def long(edits):
    """As many edits as are read: inputs grow to the length of the longest."""
    return 0, b"".join(edit for _, edit in edits)[:300]


def write(folder, name, data):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def edited(folder, bases, choices, n_keys, before=b""):
    edits = dict(EDITS, **dict(keys(n_keys)))
    edits["long"] = long(list(edits.values()))
    for i in range(bases):
        write(folder, f"base_{i}", bytes([i] * (bases > 1)) + before + bytes([KEEP_LAYOUT]))
    for i, (name, (how, edit)) in enumerate(edits.items()):
        base = bytes([i % bases]) if bases > 1 else b""
        write(folder, name, base + (bytes([choices[i % len(choices)]]) if choices else b"") + bytes([how]) + edit)


def drafter(folder, base):
    """Edits of the drafter of fuzz_model.c: all of its keys, and tensors that are matrices and norms."""
    edits = dict(EDITS, **{f"value_{i}": (0, bytes([VALUE, i, 3 + i % 5, 0, 1, 2])) for i in range(16)},
                 sound=(KEEP_LAYOUT, b""), layer=(0, bytes([ELEMENT, 13, 1, 0]) + number(7)), mask=(0, bytes([REMOVE, 14])),
                 list=(0, bytes([COUNT, 13, 5, 0])))
    for i, (name, (how, edit)) in enumerate(edits.items()):
        write(folder, f"drafter_{name}", bytes([base, 5 * i % 256, how]) + edit)


def main():
    root = sys.argv[1]
    drafter(os.path.join(root, "model"), 14)
    edited(os.path.join(root, "model"), 12, [0, 4, 8, 12, 65, 70], 24, before=b"\x05")
    edited(os.path.join(root, "quantize"), 1, list(range(11)), 6, before=b"\x00")
    edited(os.path.join(root, "graft"), 2, list(range(4)), 24, before=b"\x00")
    edited(os.path.join(root, "vocab"), 6, [], 9)
    words = b"\xff\0\0Hello  world, 123 <|im_start|>\xc3\xa9\xff\n\n  e\xcc\x81 aaaa"
    for i in range(6):
        write(os.path.join(root, "vocab"), f"text_{i}", bytes([i, KEEP_LAYOUT]) + words)
    payload = b"\x7fELF and so on"
    header = b"QNCUBIN1" + struct.pack("<QQQ", 128, len(payload), 0) + b"0123456789abcde\0" + b"nvrtc 12.4".ljust(64, b"\0") + b"0.1.0".ljust(16, b"\0")
    for right in (0, 15, 16, 31, 27, 23, 29, 30):
        write(os.path.join(root, "cubin"), f"right_{right}", bytes([right, 0, 0, 0, 0, 0]) + b"nvcc\0" + header + payload)
    for how in (0, 1, 2, 4):
        write(os.path.join(root, "cubin"), f"changed_{how}", bytes([128, how, 70, 0, 0, 0]) + b"nvcc 12.4\0" + payload)


main()
