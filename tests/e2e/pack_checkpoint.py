"""Packs the matrices of a checkpoint, and writes the same checkpoint with the weights that the packed ones stand for.

    pack_checkpoint.py CHECKPOINT METHOD PACKED PLAIN

METHOD: fp8-block, fp8-wide (blocks of 128 by 128), fp8-row, fp8-tensor, mlx-BITS, gptq-BITS (gptq_v2-BITS; gptq_act-BITS with g_idx) or awq. The codes and
scales are random, as a layout does not depend on them; the weights are computed in float64 and rounded once to f32. The
packers follow the published layouts: OCP E4M3 and DeepSeek's weight_scale_inv, mlx.core.quantize, AutoGPTQ's qlinear, AutoAWQ's
WQLinear_GEMM.
"""

import glob
import json
import os
import random
import shutil
import struct
import sys

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F8_E4M3": 1}


def read(path):
    data = open(path, "rb").read()
    (n,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0] : 8 + n + v["data_offsets"][1]]) for k, v in header.items()}


def file_of(tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values())


def f32s(values):
    return struct.pack("<%df" % len(values), *values)


def words(values):
    return struct.pack("<%dI" % len(values), *values)


def scale_of(dtype):
    """A random scale and its bytes; the value is that of the stored bytes."""
    x = random.uniform(0.5, 2) * 2.0 ** random.randint(-12, -4) * random.choice((1, -1))
    if dtype == "F16":
        data = struct.pack("<e", x)
        return struct.unpack("<e", data)[0], data
    if dtype == "BF16":
        data = struct.pack("<f", x)[2:]
        return struct.unpack("<f", b"\0\0" + data)[0], data
    data = struct.pack("<f", x)
    return struct.unpack("<f", data)[0], data


def e4m3(code):
    sign, exponent, mantissa = -1.0 if code & 128 else 1.0, code >> 3 & 15, code & 7
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def fp8(rows, columns, kind, block, dtype):
    codes = [random.choice([c for c in range(256) if c & 127 != 127]) for _ in range(rows * columns)]
    height, width = {"block": block, "wide": (128, 128), "row": (1, columns), "tensor": (rows, columns)}[kind]
    shape = [-(-rows // height), -(-columns // width)]
    scales = [scale_of(dtype) for _ in range(shape[0] * shape[1])]
    weights = [e4m3(codes[r * columns + c]) * scales[r // height * shape[1] + c // width][0] for r in range(rows) for c in range(columns)]
    parts = {
        "weight": ("F8_E4M3", [rows, columns], bytes(codes)),
        "weight_scale_inv" if kind in ("block", "wide") else "weight_scale": (
            dtype,
            [] if kind == "tensor" else shape,
            b"".join(s[1] for s in scales),
        ),
    }
    if kind == "tensor":
        parts["input_scale"] = ("F32", [], struct.pack("<f", 0.5))
    return parts, weights


def mlx(rows, columns, bits, group, dtype):
    n = columns // group
    scales, biases = ([scale_of(dtype) for _ in range(rows * n)] for _ in range(2))
    packed, weights = [], []
    for r in range(rows):
        stream = 0
        for c in range(columns):
            code = random.getrandbits(bits)
            stream |= code << (c * bits)
            weights.append(scales[r * n + c // group][0] * code + biases[r * n + c // group][0])
        packed += [stream >> (32 * w) & 0xFFFFFFFF for w in range(columns * bits // 32)]
    return {
        "weight": ("U32", [rows, columns * bits // 32], words(packed)),
        "scales": (dtype, [rows, n], b"".join(s[1] for s in scales)),
        "biases": (dtype, [rows, n], b"".join(s[1] for s in biases)),
    }, weights


def stream_words(codes, bits):
    stream = 0
    for i, code in enumerate(codes):
        stream |= code << (i * bits)
    return [stream >> (32 * w) & 0xFFFFFFFF for w in range(len(codes) * bits // 32)]


def gptq(rows, columns, bits, group, less, act):
    n = -(-columns // group)
    group_of = [random.randrange(n) for _ in range(columns)] if act else [c // group for c in range(columns)]
    codes = [[random.getrandbits(bits) for _ in range(columns)] for _ in range(rows)]
    zeros = [[random.randrange(less, 2**bits) for _ in range(rows)] for _ in range(n)]
    scales = [[scale_of("F16") for _ in range(rows)] for _ in range(n)]
    weights = [scales[group_of[c]][r][0] * (codes[r][c] - zeros[group_of[c]][r]) for r in range(rows) for c in range(columns)]
    down = [stream_words(codes[r], bits) for r in range(rows)]
    return {
        "qweight": ("I32", [columns * bits // 32, rows], words([down[r][w] for w in range(columns * bits // 32) for r in range(rows)])),
        "qzeros": ("I32", [n, rows * bits // 32], words([w for g in range(n) for w in stream_words([z - less for z in zeros[g]], bits)])),
        "scales": ("F16", [n, rows], b"".join(s[1] for g in scales for s in g)),
        "g_idx": ("I32", [columns], words(group_of)),
        "bias": ("F16", [rows], bytes(2 * rows)),
    }, weights


def awq_words(codes):
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    return [sum(codes[i + order[k]] << (4 * k) for k in range(8)) for i in range(0, len(codes), 8)]


def awq(rows, columns, group):
    n = -(-columns // group)
    codes = [[random.getrandbits(4) for _ in range(rows)] for _ in range(columns)]
    zeros = [[random.getrandbits(4) for _ in range(rows)] for _ in range(n)]
    scales = [[scale_of("F16") for _ in range(rows)] for _ in range(n)]
    weights = [scales[c // group][r][0] * (codes[c][r] - zeros[c // group][r]) for r in range(rows) for c in range(columns)]
    return {
        "qweight": ("I32", [columns, rows // 8], words([w for c in codes for w in awq_words(c)])),
        "qzeros": ("I32", [n, rows // 8], words([w for z in zeros for w in awq_words(z)])),
        "scales": ("F16", [n, rows], b"".join(s[1] for g in scales for s in g)),
    }, weights


def pack(method, rows, columns):
    """The parts of a packed matrix and its weights, and quantization_config; None if it does not fit the method."""
    name, _, rest = method.partition("-")
    bits = int(rest) if rest.isdigit() else 4
    if name == "fp8":
        blocks = {"block": [32, 48], "wide": [128, 128]}
        config = (
            {"quant_method": "fp8", "weight_block_size": blocks[rest]}
            if rest in blocks
            else {
                "quant_method": "compressed-tensors",
                "format": "float-quantized",
                "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8, "strategy": "channel"}}},
            }
        )
        return fp8(rows, columns, rest, (32, 48), "F32" if rest in blocks else "BF16"), config
    if name == "mlx":
        return (mlx(rows, columns, bits, 32, "BF16") if columns % 32 == 0 else None), {"group_size": 32, "bits": bits}
    if rows * bits % 32 or columns * bits % 32 or rows % 8:
        return None, None
    if name == "awq":
        return awq(rows, columns, 32), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    version = "gptq_v2" if name == "gptq_v2" else "gptq"
    return gptq(rows, columns, bits, 32, version == "gptq", name == "gptq_act"), {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": 32,
        "checkpoint_format": version,
        "desc_act": name == "gptq_act",
    }


def main():
    source, method, packed_folder, plain_folder = sys.argv[1:]
    random.seed(method)
    tensors, packed, plain, used = {}, {}, {}, None
    for path in sorted(glob.glob(os.path.join(source, "*.safetensors"))):
        tensors.update(read(path))
    for name, (dtype, shape, data) in tensors.items():
        packed[name] = plain[name] = (dtype, shape, data)
        if len(shape) != 2 or "visual" in name or not name.endswith(".weight"):
            continue
        made, config = pack(method, *shape)
        if not made:
            continue
        used = config
        del packed[name]
        for part, tensor in made[0].items():
            packed.setdefault(name[: -len("weight")] + part, tensor)
        plain[name] = ("F32", shape, f32s(made[1]))
    for folder, contents in ((packed_folder, packed), (plain_folder, plain)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns("golden.*", "*.safetensors*"))
        os.chmod(folder, 0o700)
        with open(os.path.join(folder, "model.safetensors"), "wb") as file:
            file.write(file_of(contents))
    path = os.path.join(packed_folder, "config.json")
    config = json.load(open(path))
    config["quantization" if method.startswith("mlx") else "quantization_config"] = used
    os.remove(path)
    json.dump(config, open(path, "w"))


if __name__ == "__main__":
    main()
