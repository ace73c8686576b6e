#!/usr/bin/env python3
"""Compare quern's tokenisers with sentencepiece and tokenizers, on vocabularies that are trained here.

usage: compare_tokenizers.py --tokenize-lines PROGRAM --work FOLDER [--texts N] --corpus FILE...
       compare_tokenizers.py --write-golden FOLDER --corpus tests/golden/demo.txt

The vocabularies of real models cannot be redistributed; these small ones have the same pre-tokenisers, normalisers and kinds of tokens.
Every text's ids must be equal, for natural text and for drawn text of many scripts, white space, digits and symbols. Texts with bytes
that are no UTF-8 have the ids of the text around each such byte, with a byte token between. Characters that are newer than the Unicode
of either library's tables are not drawn.

The second form writes vocab_NAME.gguf and vocab_NAME.txt, for tests without Python: small vocabularies, and lines of a text's bytes in
hexadecimal, a semicolon and its ids.

Status: 0 equal, 1 different, 2 a package is missing.

    pip install sentencepiece tokenizers

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import io
import os
import random
import struct
import subprocess
import sys

try:
    import sentencepiece
    import tokenizers
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(2)

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# ---- Files ----


def write_vocabulary(path, keys):
    """keys: {name: str | bool | int | list of str | ("i", list of int) | ("f", list of float)}"""

    def text(s):
        raw = s.encode("utf-8")
        return struct.pack("<Q", len(raw)) + raw

    def value(v):
        if isinstance(v, bool):
            return struct.pack("<I?", 7, v)
        if isinstance(v, int):
            return struct.pack("<II", 4, v)
        if isinstance(v, str):
            return struct.pack("<I", 8) + text(v)
        if isinstance(v, list):
            return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(text, v))
        kind, numbers = v
        return struct.pack(f"<IIQ{len(numbers)}{kind}", 9, {"i": 5, "f": 6}[kind], len(numbers), *numbers)

    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys)) + b"".join(text(k) + value(v) for k, v in keys.items())
    with open(path, "wb") as f:
        f.write(data + bytes(-len(data) % 32))


# ---- SentencePiece ----

SENTENCEPIECE = {
    "spm-plain": dict(byte_fallback=True),
    "spm-no-prefix": dict(byte_fallback=True, add_dummy_prefix=False, user_defined_symbols=["<sep>", "<sep><sep>", "\n\n", "0"],
                          control_symbols=["<|im_start|>", "<|im_end|>"]),
    "spm-no-bytes": dict(byte_fallback=False, character_coverage=0.98),
    "spm-spaces": dict(byte_fallback=True, remove_extra_whitespaces=True),
    "spm-across": dict(byte_fallback=True, split_by_whitespace=False, max_sentencepiece_length=40, split_by_unicode_script=False,
                       split_by_number=False, add_dummy_prefix=False),
    "spm-unused": dict(byte_fallback=True),
}


def train_sentencepiece(name, corpus, size):
    options = dict(remove_extra_whitespaces=False, add_dummy_prefix=True, character_coverage=0.99)
    options.update(SENTENCEPIECE[name])
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus.split("\n")), model_writer=out, model_type="bpe", vocab_size=size,
                                             normalization_rule_name="identity", minloglevel=2, num_threads=1, **options)
    proto = with_unused(out.getvalue()) if name == "spm-unused" else out.getvalue()
    return sentencepiece.SentencePieceProcessor(model_proto=proto), options


def with_unused(proto):
    """Makes two of five normal pieces unused: they are merged to, and divided again."""
    draw = random.Random(3)

    def varint(at):
        value = shift = 0
        while True:
            value |= (proto[at] & 127) << shift
            shift += 7
            at += 1
            if not proto[at - 1] & 128:
                return value, at

    out, at = b"", 0
    while at < len(proto):
        begin = at
        tag, at = varint(at)
        length, at = varint(at)
        assert tag & 7 == 2  # ModelProto has messages alone
        body = proto[at:at + length]
        at += length
        # A piece without a type (field 3) is normal; 5 is unused.
        if tag == 0x0A and b"\x18" not in body[-2:-1] and draw.random() < 0.4:
            body += b"\x18\x05"
            assert len(body) < 128
            out += bytes([tag, len(body)]) + body
        else:
            out += proto[begin:at]
    return out


def sentencepiece_keys(model, options):
    n = model.get_piece_size()

    def kind(i):
        if model.is_byte(i):
            return BYTE
        if model.is_unknown(i):
            return UNKNOWN
        if model.is_control(i):
            return CONTROL
        if model.is_unused(i):
            return UNUSED
        return USER if model.id_to_piece(i) in options.get("user_defined_symbols", []) else NORMAL

    keys = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(n)],
        "tokenizer.ggml.scores": ("f", [model.get_score(i) for i in range(n)]),
        "tokenizer.ggml.token_type": ("i", [kind(i) for i in range(n)]),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }
    if not options["add_dummy_prefix"]:
        keys["tokenizer.ggml.add_space_prefix"] = False
    if options["remove_extra_whitespaces"]:
        keys["tokenizer.ggml.remove_extra_whitespaces"] = True
    return keys


# ---- Byte-level BPE: the normaliser and the pre_tokenizer of the models' tokenizer.json ----

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT4 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|" \
       r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK_V3 = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
               r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
               r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""]
# name: (patterns, or None for GPT-2's after single digits; form C; ignore_merges)
BYTE_LEVEL = {
    "qwen2": ([GPT4 % r"\p{N}"], True, False),
    "deepseek-r1-qwen": ([GPT4 % r"\p{N}"], True, False),
    "qwen35": ([CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"], True, False),
    "smollm": (None, False, False),
    "llama-bpe": ([GPT4 % r"\p{N}{1,3}"], False, True),
    "falcon3": ([GPT4 % r"\p{N}{1,3}"], False, True),
    "smaug-bpe": ([GPT4 % r"\p{N}{1,3}"], False, False),
    "tekken": ([WORD % ("", "") + r"\p{N}" + REST], False, True),
    "gpt-4o": ([WORD % (CONTRACTION + "?", CONTRACTION + "?") + r"\p{N}{1,3}" + REST], False, False),
    "llama4": ([WORD % (CONTRACTION + "?", CONTRACTION + "?") + r"\p{N}{1,3}" + REST], False, False),
    "deepseek-v3": (DEEPSEEK_V3, False, False),
}


def train_byte_level(name, corpus, size):
    patterns, form_c, ignore_merges = BYTE_LEVEL[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if form_c:
        tokenizer.normalizer = normalizers.NFC()
    if patterns is None:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    else:
        steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.train_from_iterator(corpus.split("\n\n"), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|begin|>", "<|end|>"]))
    return tokenizer


def byte_level_keys(name, tokenizer):
    import json
    model = json.loads(tokenizer.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": ("i", [CONTROL if t in ("<|begin|>", "<|end|>") else NORMAL for t in vocab]),
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


NAMES = [*SENTENCEPIECE, *BYTE_LEVEL]


class Vocabulary:
    """A trained vocabulary: keys, of its file; ids(text), by the other library."""

    def __init__(self, name, corpus, size):
        self.name = name
        if name in SENTENCEPIECE:
            self.model, options = train_sentencepiece(name, corpus, size)
            self.keys = sentencepiece_keys(self.model, options)
            # Bytes outside UTF-8 are compared where the text around them needs no normalisation.
            self.keeps_bytes = options["byte_fallback"] and not options["add_dummy_prefix"]
            self.ids = self.model.encode
        else:
            self.model = train_byte_level(name, corpus, size)
            self.keys = byte_level_keys(name, self.model)
            self.keeps_bytes = False
            self.ids = lambda text: self.model.encode(text, add_special_tokens=False).ids

    def ids_of_bytes(self, raw):
        ids, run = [], ""
        for c in raw.decode("utf-8", "surrogateescape"):
            if 0xDC80 <= ord(c) <= 0xDCFF:
                ids += self.ids(run) + [self.model.piece_to_id(f"<0x{ord(c) - 0xDC00:02X}>")]
                run = ""
            else:
                run += c
        return ids + self.ids(run)


# ---- Texts ----

RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0x30, 0x39), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x5FF), (0x600, 0x6FF),
          (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1C4, 0x1CC), (0x1F80, 0x1FBC), (0x2000, 0x206F), (0x2150, 0x218F), (0x2580, 0x25FF),
          (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0x9FA0, 0x9FB0), (0xAC00, 0xD7A3), (0xFF00, 0xFFEF), (0x10400, 0x1044F), (0x1F300, 0x1F64F)]
PARTS = [" ", " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "'s", "'LL", "'\u017f", "'re", "123", "4567", "3.14", "HTTPServer", "iPhone's", "don't",
         "e\u0301", "\u1112\u1161\u11ab", "\u2581", "\u2581\u2581", "\u3000", "\u00a0", "\u180e", "\u0085", "👍🏽", "👨‍👩‍👧", "</s>", "<s>", "<0x41>", "<unk>", "<sep>",
         "<|im_start|>", "/*", "*/\n//", "!?\r\n/", "的是", "カタカナ漢字", "ъЫ", "ßẞ", "ǅ", "Ⅷ½", "\0", "\x7f", "a" * 40, "ab" * 30, "=" * 20, "the", "The", "THE"]


def texts_of(corpus, count, seed):
    draw = random.Random(seed)
    texts = ["", " ", "  ", "a", " a", "a ", "\n", *PARTS]
    while len(texts) < count:
        if draw.random() < 0.3:
            at = draw.randrange(len(corpus))
            texts.append(corpus[at:at + draw.randrange(200)])
            continue
        text = ""
        for _ in range(draw.randrange(1, 12)):
            if draw.random() < 0.5:
                text += draw.choice(PARTS)
            else:
                low, high = draw.choice(RANGES)
                text += "".join(chr(draw.randint(low, high)) for _ in range(draw.randrange(1, 8)))
        texts.append(text)
    return texts


def corpus_of(paths):
    """Natural text, and some of all scripts."""
    parts = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            parts.append(f.read())
    drawn = "\n".join(texts_of(" ", 90, "corpus"))
    return "\n".join(parts) + "\n" + "".join(c for c in drawn if c == "\n" or c.isprintable())


def bytes_of(texts, seed):
    draw = random.Random(seed)
    changed = []
    for text in texts:
        raw = bytearray(text.encode())
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(raw) + 1)
            if draw.random() < 0.5:
                raw[at:at] = bytes([draw.choice([0x80, 0xBF, 0xC0, 0xC3, 0xE2, 0xED, 0xF0, 0xF5, 0xFF])])
            else:
                del raw[at:at + 1]
        changed.append(bytes(raw))
    return changed


def quern_ids(program, path, raws):
    done = subprocess.run([program, path], input="".join(raw.hex() + "\n" for raw in raws), capture_output=True, text=True, timeout=600)
    if done.returncode:
        sys.exit(f"{path}: {done.stderr.strip()}")
    lines = [line.split(";") for line in done.stdout.splitlines()]
    return [([int(i) for i in ids.split()], bytes.fromhex(pieces)) for ids, pieces in lines]


def expected_ids(vocabulary, corpus, n_texts):
    """Texts as bytes, and their ids."""
    texts = texts_of(corpus, n_texts, vocabulary.name)
    raws = [t.encode() for t in texts]
    expected = [vocabulary.ids(t) for t in texts]
    if vocabulary.keeps_bytes:
        changed = bytes_of(texts, vocabulary.name)
        raws += changed
        expected += [vocabulary.ids_of_bytes(raw) for raw in changed]
    return raws, expected


def write_golden(vocabulary, folder, corpus):
    path = os.path.join(folder, "vocab_" + vocabulary.name)
    write_vocabulary(path + ".gguf", vocabulary.keys)
    with open(path + ".txt", "w") as out:
        for raw, ids in zip(*expected_ids(vocabulary, corpus, 130)):
            out.write(f"{raw.hex()};{' '.join(map(str, ids))}\n")


def compare(vocabulary, program, path, corpus, n_texts):
    raws, expected = expected_ids(vocabulary, corpus, n_texts)
    write_vocabulary(path, vocabulary.keys)
    found = quern_ids(program, path, raws)
    if len(found) != len(raws):
        print(f"{vocabulary.name}: {len(found)} results for {len(raws)} texts")
        return False
    wrong = [i for i in range(len(raws)) if found[i][0] != expected[i]]
    for i in wrong[:5]:
        print(f"{vocabulary.name}: {raws[i]!r}: {found[i][0]}, expected {expected[i]}")
    # Bytes come back, U+2581 as a space.
    if vocabulary.keeps_bytes:
        space = "\u2581".encode()
        lost = [i for i in range(len(raws)) if found[i][1].replace(space, b" ") != raws[i].replace(space, b" ")]
        for i in lost[:5]:
            print(f"{vocabulary.name}: {raws[i]!r} comes back as {found[i][1]!r}")
        wrong += lost
    print(f"{vocabulary.name}: {len(raws)} texts, {len(vocabulary.keys['tokenizer.ggml.tokens'])} tokens, {len(wrong)} wrong")
    return not wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenize-lines")
    parser.add_argument("--write-golden")
    parser.add_argument("--corpus", required=True, nargs="+")
    parser.add_argument("--work")
    parser.add_argument("--texts", type=int, default=2000)
    args = parser.parse_args()
    corpus = corpus_of(args.corpus)
    equal = True
    for name in NAMES:
        if args.write_golden:
            write_golden(Vocabulary(name, corpus, 720), args.write_golden, corpus)
        else:
            equal &= compare(Vocabulary(name, corpus, 1200), args.tokenize_lines, os.path.join(args.work, name + ".gguf"), corpus, args.texts)
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
