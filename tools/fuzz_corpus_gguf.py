#!/usr/bin/env python3
"""Make the seeds of the GGUF fuzzer: small sound files that reach every part of the reader.

    python3 tools/fuzz_corpus_gguf.py tests/fuzz/corpus/gguf
"""
import os
import random
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def value(kind, v):
    return text(v) if kind == STRING else struct.pack("<" + PACK[kind], v)


def key(name, kind, v, element=None):
    head = text(name) + struct.pack("<I", kind)
    if kind == ARRAY:
        return head + struct.pack("<IQ", element, len(v)) + b"".join(value(element, x) for x in v)
    return head + value(kind, v)


def gguf(keys, tensors, alignment=32, version=3):
    """tensors: (name, type, dims, bytes)."""
    infos, data = b"", b""
    for name, kind, dims, content in tensors:
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += content + bytes(-len(content) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + infos
    return head + (bytes(-len(head) % alignment) + data if tensors else b"")


def rotated(version, element, grouped):
    """A model of one layer of each kind whose matrices are stored rotated, in blocks of 4."""
    shapes = {"token_embd": (8, 3), "output": (8, 3), "blk.0.attn_qkv": (8, 4), "blk.0.attn_gate": (8, 4), "blk.0.ssm_out": (4, 8),
              "blk.1.attn_q": (8, 4), "blk.1.attn_k": (8, 4), "blk.1.attn_v": (8, 4), "blk.1.ffn_gate": (8, 4),
              "blk.1.ffn_up": (8, 4), "blk.1.ffn_down": (4, 8)}
    if version == 2:
        del shapes["output"]
    prefix = "prism.hadamard."
    keys = [key(prefix + "version", U32, version), key(prefix + "block_size", U32, 4),
            key(prefix + "transform", STRING, "normalized-sylvester-walsh-hadamard"),
            key(prefix + "axis", STRING, "input-last-dimension"),
            key(prefix + "sign_mode", STRING, "explicit" if element else "identity"),
            key(prefix + "weight_names", ARRAY, [name + ".weight" for name in shapes if name != "token_embd"], STRING),
            key(prefix + "inverse_weight_names", ARRAY, ["token_embd.weight"], STRING),
            key(prefix + "gdn_v_grouped", BOOL, grouped)]
    if element:
        keys += [key(prefix + "sign_widths", ARRAY, [8, 4], element),
                 key(prefix + "sign_values", ARRAY, [1, -1, -1, 1, 1, 1, 1, -1, -1, 1, 1, -1], element)]
    if version == 2:
        keys += [key(prefix + "tied_output", BOOL, True)]
    return gguf(keys, [(name + ".weight", 0, dims, bytes(4 * dims[0] * dims[1])) for name, dims in shapes.items()])


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(2)
    noise = lambda n: bytes(rng.randrange(256) for _ in range(n))
    scalars = [(U8, 200), (I8, -3), (U16, 60000), (I16, -300), (U32, 1 << 31), (I32, -5), (F32, 0.5), (BOOL, True),
               (STRING, "text"), (U64, 1 << 63), (I64, -1), (F64, 1e300)]
    every_key = [key(f"scalar.{k}", k, v) for k, v in scalars]
    every_key += [key(f"array.{k}", ARRAY, [v, v, v], k) for k, v in scalars] + [key("array.empty", ARRAY, [], STRING)]
    # (type, weights and bytes of a block)
    types = [(0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (12, 256, 144), (13, 256, 176),
             (14, 256, 210), (30, 1, 2), (34, 256, 54), (35, 256, 66), (41, 128, 18), (142, 128, 34), (143, 128, 28)]
    old = b"".join(struct.pack("<H", 0x2c00 + i) + b"\x84" * 32 for i in range(20))
    ox = b"".join(b"\x84" * 32 + struct.pack("<H", 0x2c00 + i) for i in range(20))
    files = {
        "keys": gguf(every_key, []),
        "types": gguf([], [(f"t{t}", t, (w, 2), noise(2 * b)) for t, w, b in types]),
        "mainline": gguf([], [("a", 42, (64, 3), noise(54)), ("b", 0, (3,), bytes(12)), ("c", 42, (192, 1, 2), noise(108))]),
        "prism": gguf([], [("a", 42, (256, 10), old)]),
        "oxibonsai": gguf([], [("a", 42, (256, 5), ox[:340]), ("b", 42, (256, 10), ox)]),
        "aligned": gguf([key("general.alignment", U32, 128)], [("a", 1, (5,), noise(10)), ("b", 1, (7, 1, 1, 2), noise(28))], 128),
        "version2": gguf([key("general.architecture", STRING, "llama")], [("token_embd.weight", 8, (32, 4), noise(136))], version=2),
    }
    files |= {"rotated": rotated(1, I32, True), "rotated-f64": rotated(1, F64, False), "rotated-tied": rotated(2, None, True)}
    tables = [(10, 256, 84), (11, 256, 110), (20, 32, 18), (23, 256, 136), (39, 32, 17)]
    files |= {"types-tables": gguf([], [(f"t{t}", t, (w, 2), noise(2 * b)) for t, w, b in tables]),
              "heads": gguf([key("qwen35.block_count", U32, 3), key("qwen35.attention.head_count_kv", ARRAY, [0, 2, 0], U32)], []),
              "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"}
    for name, content in files.items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(content)


main()
