#!/usr/bin/env python3
"""Translates SPIR-V from SPV_NV_cooperative_matrix to SPV_KHR_cooperative_matrix.

glslc of Debian 12 knows the former alone, most drivers the latter alone. Reads and writes words as glslc -mfmt=num does.
All matrices are integers with signs. A matrix whose number of columns is a specialisation constant is operand A, one whose
number of rows is, B, others are accumulators.
"""

import re
import struct
import sys

CAPABILITY, EXTENSION, CONSTANT_TRUE, CONSTANT_FALSE, CONSTANT, SPEC_CONSTANT, TYPE_INT = 17, 10, 41, 42, 43, 50, 21
NV_CAPABILITY, KHR_CAPABILITY = 5357, 6022
NV_TYPE, NV_LOAD, NV_STORE, NV_MUL_ADD, NV_LENGTH = 5358, 5359, 5360, 5361, 5362
KHR_TYPE, KHR_LOAD, KHR_STORE, KHR_MUL_ADD, KHR_LENGTH = 4456, 4457, 4458, 4459, 4460
ALL_SIGNED = 15
A, B, ACCUMULATOR = 0, 1, 2
ROW_MAJOR, COLUMN_MAJOR = 0, 1


def string_words(text):
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def translate(words):
    header, at = words[:5], 5
    ids = list(range(header[3], header[3] + 3))  # of the constants 0, 1, 2: uses and layouts
    header[3] += len(ids)
    out, uint, has_constants, spec_constants, booleans = [], None, False, set(), {}

    def emit(op, *operands):
        out.extend([(len(operands) + 1) << 16 | op, *operands])

    while at < len(words):
        n, op = words[at] >> 16, words[at] & 0xFFFF
        args = words[at + 1 : at + n]
        at += n
        if op == CAPABILITY and args[0] == NV_CAPABILITY:
            args = [KHR_CAPABILITY]
        elif op == EXTENSION and args == string_words("SPV_NV_cooperative_matrix"):
            args = string_words("SPV_KHR_cooperative_matrix")
        elif op == TYPE_INT and args[1:] == [32, 0]:
            uint = args[0]
        elif op == SPEC_CONSTANT:
            spec_constants.add(args[1])
        elif op in (CONSTANT_TRUE, CONSTANT_FALSE):
            booleans[args[1]] = ids[COLUMN_MAJOR if op == CONSTANT_TRUE else ROW_MAJOR]
        elif op == NV_TYPE:
            for value, constant in enumerate(ids):
                if not has_constants:
                    emit(CONSTANT, uint, constant, value)
            has_constants = True
            rows, columns = args[3:5]
            use = A if columns in spec_constants else B if rows in spec_constants else ACCUMULATOR
            op, args = KHR_TYPE, [*args, ids[use]]
        elif op == NV_LOAD:
            result_type, result, pointer, stride, is_column_major, *access = args
            op, args = KHR_LOAD, [result_type, result, pointer, booleans[is_column_major], stride, *access]
        elif op == NV_STORE:
            pointer, matrix, stride, is_column_major, *access = args
            op, args = KHR_STORE, [pointer, matrix, booleans[is_column_major], stride, *access]
        elif op == NV_MUL_ADD:
            op, args = KHR_MUL_ADD, [*args, ALL_SIGNED]
        elif op == NV_LENGTH:
            op = KHR_LENGTH
        emit(op, *args)
    return header + out


def main():
    words = translate([int(word, 16) for word in re.findall(r"0x[0-9a-f]+", sys.stdin.read())])
    for i in range(0, len(words), 4):
        print("".join(f"0x{word:08x}," for word in words[i : i + 4]))


main()
