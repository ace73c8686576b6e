"""GGUF files from Python: read, write, decode tensors to float64, draw random low-bit tensors.

Written from the format's description and independent of quern's C code, so that a mistake there does not hide here. Only what the
golden models and the reference scripts need: little-endian version 3, tensors of up to four dimensions, data held in memory.

SPDX-License-Identifier: Apache-2.0
"""
import struct

import numpy as np

# name: (number in the file, weights in a block, bytes in a block)
TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q8_0": (8, 32, 34),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "q6_k": (14, 256, 210),
    "iq4_nl": (20, 32, 18),
    "iq4_xs": (23, 256, 136),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
    "bf16": (30, 1, 2),
    "q1_0": (41, 128, 18),
    "q2_0": (42, 64, 18),
    "pq2_0": (142, 128, 34),
    "ptq1_0": (143, 128, 28),
}
TYPE_NAMES = {number: name for name, (number, _, _) in TYPES.items()}
ALIGNMENT = 32

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# numpy's letters of array elements, where the kind of number in the file matters
KINDS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": 7, "u8": 10, "i8": 11, "f8": 12}


class Tensor:
    """A tensor as it lies in the file. shape is [n_out, n_in] for a matrix: numpy's order, the reverse of the file's."""

    def __init__(self, name, shape, type_name, data):
        self.name, self.shape, self.type, self.data = name, tuple(shape), type_name, data

    def decode(self):
        return decode(self.type, self.data, self.shape)


def read(path):
    """Returns (keys, tensors), both dictionaries in the file's order."""
    with open(path, "rb") as f:
        buf = f.read()
    pos = 0

    def take(fmt):
        nonlocal pos
        value = struct.unpack_from("<" + fmt, buf, pos)[0]
        pos += struct.calcsize("<" + fmt)
        return value

    def read_string():
        nonlocal pos
        n = take("Q")
        raw = buf[pos:pos + n]
        if len(raw) != n:
            raise ValueError(f"{path}: string of {n} bytes runs past the end")
        pos += n
        return raw.decode("utf-8", "surrogateescape")

    def read_value(kind):
        if kind == STRING:
            return read_string()
        if kind == ARRAY:
            element = take("I")
            return [read_value(element) for _ in range(take("Q"))]
        return take(SCALARS[kind])

    if buf[:4] != b"GGUF":
        raise ValueError(f"{path}: not a GGUF file")
    pos = 4
    version = take("I")
    if version != 3:
        raise ValueError(f"{path}: GGUF version {version}, expected 3")
    n_tensors, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        key = read_string()
        keys[key] = read_value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name = read_string()
        dims = [take("Q") for _ in range(take("I"))]
        infos.append((name, dims[::-1], take("I"), take("Q")))
    alignment = keys.get("general.alignment", ALIGNMENT)
    base = (pos + alignment - 1) // alignment * alignment
    tensors = {}
    for name, shape, number, offset in infos:
        if number not in TYPE_NAMES:
            raise ValueError(f"{path}: tensor '{name}' has type {number}, which this script does not decode")
        _, weights, size = TYPES[TYPE_NAMES[number]]
        n = int(np.prod(shape)) // weights * size
        data = np.frombuffer(buf, np.uint8, n, base + offset)
        tensors[name] = Tensor(name, shape, TYPE_NAMES[number], data)
    return keys, tensors


def write(path, keys, tensors):
    """keys: {name: bool | int | float | str | list of one of these | numpy array}, written as bool, u32, f32 and strings, numpy
    arrays as what they hold. tensors: a list of Tensor, in the file's order."""

    def text(s):
        raw = s.encode()
        return struct.pack("<Q", len(raw)) + raw

    def kind_and_bytes(value):
        if isinstance(value, str):
            return STRING, text(value)
        if isinstance(value, list):
            elements = [kind_and_bytes(v) for v in value]
            return ARRAY, struct.pack("<IQ", elements[0][0], len(value)) + b"".join(raw for _, raw in elements)
        if isinstance(value, np.ndarray):
            return ARRAY, struct.pack("<IQ", KINDS[value.dtype.str[1:]], len(value)) + value.tobytes()
        if isinstance(value, bool):
            return 7, struct.pack("<?", value)
        return (6, struct.pack("<f", value)) if isinstance(value, float) else (4, struct.pack("<I", value))

    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    for key, value in keys.items():
        kind, raw = kind_and_bytes(value)
        head += text(key) + struct.pack("<I", kind) + raw
    offset = 0
    for t in tensors:
        head += text(t.name) + struct.pack("<I", len(t.shape))
        head += struct.pack(f"<{len(t.shape)}Q", *t.shape[::-1])
        head += struct.pack("<IQ", TYPES[t.type][0], offset)
        offset += (t.data.size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % ALIGNMENT))
        for t in tensors:
            f.write(t.data.tobytes() + b"\0" * (-t.data.size % ALIGNMENT))


def f16_values(raw):
    """[n, 2] bytes to [n, 1] float64."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float64).reshape(-1, 1)


def two_bit_codes(raw):
    """[n, b] bytes to [n, 4b] codes, the lowest bits first."""
    return ((raw[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3).reshape(len(raw), -1)


def nibbles(raw):
    """[n, 16] bytes to [n, 32]: low nibbles, then high ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def trit_place(e):
    """Byte and digit of element e of a PTQ1_0 block."""
    if e < 80:
        return e % 16, e // 16
    if e < 120:
        return 16 + (e - 80) % 8, (e - 80) // 8
    return 24 + (e - 120) % 2, (e - 120) // 2


TRIT_BYTE = np.array([trit_place(e)[0] for e in range(128)])
TRIT_POWER = np.array([3 ** trit_place(e)[1] for e in range(128)], np.uint32)


def decode(type_name, data, shape):
    """The exact weights, float64."""
    if type_name == "f32":
        return data.view("<f4").astype(np.float64).reshape(shape)
    if type_name == "f16":
        return data.view("<f2").astype(np.float64).reshape(shape)
    if type_name == "bf16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(shape)
    b = data.reshape(-1, TYPES[type_name][2])
    if type_name == "q1_0":
        bits = np.unpackbits(b[:, 2:], axis=1, bitorder="little")
        w = (2.0 * bits - 1.0) * f16_values(b[:, :2])
    elif type_name in ("q2_0", "pq2_0"):
        w = (two_bit_codes(b[:, 2:]) - 1.0) * f16_values(b[:, :2])
    elif type_name == "ptq1_0":
        digits = (b[:, TRIT_BYTE].astype(np.uint32) * TRIT_POWER % 256) * 3 >> 8
        w = (digits - 1.0) * f16_values(b[:, 26:])
    elif type_name == "q4_0":
        w = (nibbles(b[:, 2:]) - 8.0) * f16_values(b[:, :2])
    elif type_name == "q4_1":
        w = nibbles(b[:, 4:]) * f16_values(b[:, :2]) + f16_values(b[:, 2:4])
    elif type_name == "q8_0":
        w = np.ascontiguousarray(b[:, 2:]).view(np.int8) * f16_values(b[:, :2])
    elif type_name in DECODERS:
        w = DECODERS[type_name](b)
    else:
        raise ValueError(type_name)
    return w.reshape(shape)


IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0])
E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def fields_of_halves(b):
    """[n, 64] bytes to [n, 256] 2-bit fields: each half of the block is 32 bytes, of which field k of all is run k."""
    halves = b.reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    return halves.reshape(-1, 256)


def decode_q2_k(b):
    """16 bytes, a scale in the low nibble and a minimum in the high one for 16 weights each, 64 of codes, d, dmin."""
    scale = (b[:, :16] & 15) * f16_values(b[:, 80:82])
    minimum = (b[:, :16] >> 4) * f16_values(b[:, 82:84])
    return (fields_of_halves(b[:, 16:80]).reshape(-1, 16, 16) * scale[:, :, None] - minimum[:, :, None]).reshape(-1, 256)


def decode_q3_k(b):
    """32 bytes of third bits, 64 of codes, 12 of 6-bit scales (the low nibbles of 16 scales, then four pairs of top bits a byte), d."""
    third = (b[:, None, :32] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1).reshape(-1, 256)
    low = np.concatenate([b[:, 96:104] & 15, b[:, 96:104] >> 4], axis=1).astype(int)
    top = np.concatenate([b[:, 104:108] >> 2 * k & 3 for k in range(4)], axis=1).astype(int)
    scale = (low + 16 * top - 32) * f16_values(b[:, 108:])
    codes = fields_of_halves(b[:, 32:96]).astype(int) + 4 * third - 4
    return (codes.reshape(-1, 16, 16) * scale[:, :, None]).reshape(-1, 256)


def decode_iq4_xs(b):
    """d, 16 bits with the top two of eight 6-bit scales, 32 bits with their lower four, 16 bytes of nibbles for each 32 weights."""
    high = np.ascontiguousarray(b[:, 2:4]).view("<u2").astype(int) >> 2 * np.arange(8) & 3
    low = np.ascontiguousarray(b[:, 4:8]).view("<u4").astype(np.int64) >> 4 * np.arange(8) & 15
    scale = (low + 16 * high - 32) * f16_values(b[:, :2])
    codes = nibbles(b[:, 8:].reshape(-1, 16)).reshape(-1, 8, 32)
    return (IQ4_VALUES[codes] * scale[:, :, None]).reshape(-1, 256)


def e4m3_values(raw):
    """Unsigned floats of four bits of exponent and three of mantissa; 0x7f, no number, counts as 0."""
    raw = raw.astype(int)
    exponent, mantissa = raw >> 3 & 15, raw & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0 ** -9)
    return np.where(raw == 0x7F, 0.0, value)


def decode_nvfp4(b):
    """Four scales, then 8 bytes for each 16 weights: the low nibbles are the first eight of them."""
    codes = b[:, 4:].reshape(-1, 4, 1, 8) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    return (E2M1_VALUES[codes.reshape(-1, 4, 16)] * e4m3_values(b[:, :4])[:, :, None]).reshape(-1, 64)


DECODERS = {
    "q2_k": decode_q2_k,
    "q3_k": decode_q3_k,
    "q6_k": lambda b: decode_q6_k(b),
    "iq4_nl": lambda b: IQ4_VALUES[nibbles(b[:, 2:])] * f16_values(b[:, :2]),
    "iq4_xs": decode_iq4_xs,
    "mxfp4": lambda b: E2M1_VALUES[nibbles(b[:, 1:])] * 2.0 ** (b[:, :1].astype(float) - 127),
    "nvfp4": decode_nvfp4,
}


def decode_q6_k(b):
    """128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, then d. Each half of the block is 4 runs of 32."""
    low, high = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 32)
    scales = np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float64)
    codes = np.empty((len(b), 2, 4, 32))
    for run in range(4):
        codes[:, :, run] = (low[:, :, run % 2] >> (4 * (run // 2)) & 15) | (high >> (2 * run) & 3) << 4
    w = (codes.reshape(-1, 16, 16) - 32.0) * scales[:, :, None]
    return w.reshape(-1, 256) * f16_values(b[:, 208:])


def encode_plain(type_name, values):
    """Bytes of f32, f16 or bf16, rounded to nearest even."""
    values = np.ascontiguousarray(values, np.float32)
    if type_name == "f32":
        return values.astype("<f4").reshape(-1).view(np.uint8)
    if type_name == "f16":
        return values.astype("<f2").reshape(-1).view(np.uint8)
    if type_name == "bf16":
        bits = values.reshape(-1).view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)
    raise ValueError(type_name)


def random_blocks(type_name, n_out, n_in, rng, scale=None, scale_spread=0.5):
    """Random codes, every value a byte of the type's can mean included; one code in a hundred is 3 where that is legal.

    The scales are 1/sqrt(n_in), each times a factor drawn from 1 +- scale_spread: an engine that takes the wrong block's scale
    must not come out right."""
    _, weights, size = TYPES[type_name]
    n = n_out * n_in // weights
    b = np.empty((n, size), np.uint8)
    d = (scale or 1.0 / np.sqrt(n_in)) * rng.uniform(1 - scale_spread, 1 + scale_spread, n)
    d = d.astype("<f2").reshape(n, 1).view(np.uint8)
    if type_name == "ptq1_0":
        trits = np.concatenate([rng.integers(0, 243, (n, 24)), rng.integers(0, 81, (n, 2)) * 3], axis=1)
        b[:, :26] = (trits * 256 + 242) // 243
        b[:, 26:] = d
        return b.reshape(-1)
    if type_name in DECODERS:
        return random_many_bits(type_name, b, scale or 1.0 / np.sqrt(n_in), scale_spread, rng)
    b[:, :2] = d
    if type_name == "q1_0":
        b[:, 2:] = rng.integers(0, 256, (n, 16), np.uint8)
    elif type_name in ("q2_0", "pq2_0"):
        codes = rng.integers(0, 3, (n, size - 2, 4), np.uint8)
        codes[rng.random(codes.shape) < 0.01] = 3
        b[:, 2:] = codes[..., 0] | codes[..., 1] << 2 | codes[..., 2] << 4 | codes[..., 3] << 6
    else:
        raise ValueError(type_name)
    return b.reshape(-1)


# The deviation of random codes, with the scale of the block being 1.
DEVIATION = {"q2_k": 12.0, "q3_k": 42.0, "q6_k": 1350.0, "iq4_nl": 70.0, "iq4_xs": 1300.0, "mxfp4": 2.9, "nvfp4": 2.9}


def random_many_bits(type_name, b, scale, scale_spread, rng):
    """As random_blocks: all bytes are drawn, then those of the block's scale are replaced."""
    n = len(b)
    d = scale / DEVIATION[type_name] * rng.uniform(1 - scale_spread, 1 + scale_spread, (n, 1))
    b[:] = rng.integers(0, 256, b.shape, np.uint8)
    f16 = d.astype("<f2").view(np.uint8)
    if type_name in ("q2_k", "q3_k", "q6_k"):
        at = {"q2_k": 80, "q3_k": 108, "q6_k": 208}[type_name]
        b[:, at:at + 2] = f16
        if type_name == "q2_k":  # as far below zero as the codes are above it
            b[:, 82:84] = (1.5 * d).astype("<f2").view(np.uint8)
    elif type_name == "mxfp4":
        b[:, :1] = 127 + np.floor(np.log2(d)) + rng.integers(0, 2, (n, 1))
    elif type_name == "nvfp4":  # 0.5 to 7.5: the tensor's scale does the rest
        b[:, :4] = rng.integers(0x30, 0x50, (n, 4))
    else:
        b[:, :2] = f16
    return b.reshape(-1)
