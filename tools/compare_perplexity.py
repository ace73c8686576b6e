#!/usr/bin/env python3
"""Compares `quern perplexity` with llama-perplexity: files of log probabilities, exchanged both ways, and all statistics of both.

    python3 tools/compare_perplexity.py --quern build/quern --llama-perplexity PROGRAM MODEL.gguf OTHER.gguf TEXT FOLDER

MODEL and OTHER are models of one vocabulary, in types that ggufio.py decodes. Both are first rewritten with float32 weights, because
llama.cpp rounds the inputs of other matmuls to 8 or 16 bits. Then, with pieces of -c tokens and a KV cache in f16, or in --cache:

  1. both programs save MODEL's log probabilities: the same head and tokens; the values' difference is printed
  2. with either file as the base, both print the statistics of OTHER
  3. the base is MODEL with each KV cache of --kv, which quern saves; both print the statistics of MODEL with the cache of 2

Perplexities, means and shares, and their errors, must be equal to four digits in 2: they differ by at most 5e-4 of their value, or by
less than the printed digits can tell. With a cache in f16, llama.cpp's attention rounds queries and weights of values to 16 bits, too.
This moves single tokens, so percentiles may differ by 2% and a little. In 3, where both models are nearly the same, it also moves the
means, which may differ by a quarter of their standard error. With --cache f32 neither program rounds anything in attention, but for
quern's bases in 3, and the means in 3 have the bound of those in 2. --as-stored compares with OTHER as it is in 2, too, without a bound: this shows what the
rounding of other inputs does. FOLDER is for files of several GB. Exit status 1: a figure differs.

Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np

import ggufio

FOUR_DIGITS = 5e-4
PERCENTILE = re.compile(r"(Maximum|Median|Minimum|[0-9.]+%) (KLD|Δp)")
# A unit of the last digit that both programs print; of other figures 1e-6.
UNITS = {"Cor(ln(PPL(Q)), ln(PPL(base)))": 1e-2, "Same top p": 1e-3, "Δp": 1e-3}


def run(command):
    print("+", " ".join(map(str, command)), flush=True)
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def float32_copy(path, folder, n_layers):
    """The model with float32 weights, and with its first n_layers blocks alone if that is not 0."""
    copy = folder / f"{path.stem}.f32.gguf"
    keys, tensors = ggufio.read(str(path))
    if n_layers:
        keys[f"{keys['general.architecture']}.block_count"] = n_layers
        tensors = {name: t for name, t in tensors.items() if not name.startswith("blk.") or int(name.split(".")[1]) < n_layers}
    for key, value in keys.items():
        if isinstance(value, list) and isinstance(value[0], int):
            keys[key] = np.array(value, np.int32)  # llama.cpp takes no other type for those of tokens
    decoded = [ggufio.Tensor(t.name, t.shape, "f32", ggufio.encode_plain("f32", t.decode())) for t in tensors.values()]
    ggufio.write(str(copy), keys, decoded)
    return copy


class Programs:
    def __init__(self, a, text):
        self.quern, self.llama, self.text, self.c, self.threads, self.cache = a.quern, a.llama_perplexity, text, a.c, a.threads, a.cache

    def quern_perplexity(self, model, *options):
        return run([self.quern, "perplexity", "-m", model, "-t", self.threads, *options])

    def llama_perplexity(self, model, *options):
        return run([self.llama, "-m", model, "-t", self.threads, "-c", self.c, "-b", self.c, "-fa", "off", "-ctk", self.cache, "-ctv", self.cache, *options])

    def save(self, model, name, folder, kv=None):
        """A file of log probabilities by either program."""
        path = folder / f"{name}.kld"
        if name == "llama":
            self.llama_perplexity(model, "-f", self.text, "--save-all-logits", path)
        else:
            self.quern_perplexity(model, "-f", self.text, "-c", self.c, "--kv", kv or self.cache, "--save-logits", path)
        return path

    def statistics(self, model, base):
        """What both programs print, {figure: (value, error)}."""
        quern = self.quern_perplexity(model, "--kv", self.cache, "--kl-divergence", base)
        return figures_of(quern), figures_of(self.llama_perplexity(model, "--kl-divergence-base", base, "--kl-divergence"))


def figures_of(text):
    """Printed statistics: {name: [value and, where there is one, its error]}"""
    block = re.search(r"====== Perplexity statistics ======.*?Same top p: [^\n]*", text, flags=re.S)
    if not block:
        sys.exit("no statistics: the text is too short")
    lines = re.findall(r"^ *(\S[^:\n]*?) *: +(.*)$", block[0], flags=re.M)
    return {re.sub(" +", " ", name): [float(x) for x in re.findall(r"-?[0-9]+\.[0-9]+", values)] for name, values in lines}


def tolerance(name, value, error):
    """How far a figure may be from value, whose standard error counts only in 3."""
    percentile = PERCENTILE.fullmatch(name)
    if percentile:
        return 2e-2 * abs(value) + (5e-2 if percentile[2] == "Δp" else 1e-5)
    unit = next((unit for part, unit in UNITS.items() if part in name), 1e-6)
    return max(FOUR_DIGITS * abs(value), 1.01 * unit, error / 4)


def compare_statistics(what, quern, llama, in_error):
    """Prints both and returns whether they are equal."""
    missing, fine = sorted(llama.keys() ^ quern.keys()), True
    print(f"\n{what}\n{'':32} {'quern':>20} {'llama-perplexity':>20} difference")
    for name, values in llama.items():
        error = values[1] if in_error and len(values) > 1 else 0
        for q, l in zip(quern.get(name, []), values):
            equal = abs(q - l) <= tolerance(name, l, error)
            fine &= equal
            print(f"{name:32} {q:20.6f} {l:20.6f} {q - l:.1e}{'' if equal else '   DIFFERS'}")
    if missing:
        print("printed by one alone:", ", ".join(missing))
    return fine and not missing


def read_file(path):
    """Head, tokens, and rows as an array of u16."""
    data = np.fromfile(path, np.uint8)
    c, n_vocab, n_chunks = struct.unpack_from("<3i", data, 8)
    end = 20 + 4 * c * n_chunks
    return data[:20].tobytes(), data[20:end].tobytes(), data[end:].view("<u2").reshape(-1, (n_vocab + 1) // 2 * 2 + 4)


def compare_files(paths):
    (head, tokens, rows), (other_head, other_tokens, other_rows) = map(read_file, paths)
    n_vocab = struct.unpack_from("<i", head, 12)[0]
    largest, total = 0.0, 0.0
    for row, other in zip(rows, other_rows):
        p, q = (r[4 : 4 + n_vocab].astype(np.float64) * r[:2].view("<f4")[0] + r[2:4].view("<f4")[0] for r in (row, other))
        largest, total = max(largest, np.abs(p - q).max()), total + np.square(p - q).mean()
    same = head == other_head and tokens == other_tokens
    print(f"\nfiles of both: {'the same' if same else 'ANOTHER'} head and tokens; log probabilities differ by {np.sqrt(total / len(rows)):.1e} (RMS), "
          f"at most {largest:.1e}; a code is at most {16 / 65535:.1e}")
    return same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quern", required=True)
    parser.add_argument("--llama-perplexity", required=True)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("-c", type=int, default=512)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=65536, help="of the text")
    parser.add_argument("--kv", default="aura4", help="formats that quern's bases have in 3, with commas")
    parser.add_argument("--cache", choices=["f16", "f32"], default="f16", help="of both programs")
    parser.add_argument("--layers", type=int, default=0, help="blocks that both models keep (default: all)")
    parser.add_argument("--as-stored", action="store_true")
    a = parser.parse_args()
    text = a.folder / "text"
    text.write_text(a.text.read_bytes()[: a.bytes].decode(errors="ignore").rstrip("\n"), encoding="utf-8", newline="")
    model, other = (float32_copy(path, a.folder, a.layers) for path in (a.model, a.other))
    programs = Programs(a, text)
    bases = [programs.save(model, name, a.folder) for name in ("quern", "llama")]
    fine = compare_files(bases)
    for base in bases:
        fine &= compare_statistics(f"{a.other.name} in float32, base {base.name}", *programs.statistics(other, base), False)
        if a.as_stored:
            compare_statistics(f"{a.other.name} as stored, base {base.name}", *programs.statistics(a.other, base), False)
    for kv in a.kv.split(","):
        base = programs.save(model, kv, a.folder, kv)
        fine &= compare_statistics(f"{a.cache}, base {base.name}", *programs.statistics(model, base), a.cache == "f16")
        base.unlink()
    sys.exit(not fine)


if __name__ == "__main__":
    main()
