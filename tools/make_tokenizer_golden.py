#!/usr/bin/env python3
"""Make tests/golden/tokenizer_*.txt: texts of many kinds, and the token ids that Hugging Face's tokenizers gives for them.

usage: make_tokenizer_golden.py MODEL.gguf OUT.txt

The vocabulary and the merges come from the GGUF file; the rest of the tokeniser is put together here as the tokenizer.json of the
model has it (SmolLM2: digits one by one, then GPT-2's pattern, no normaliser; Qwen2 and Qwen3: form C, then GPT-4's pattern with
single digits), so that nothing depends on how a converter of GGUF files reads tokenizer.ggml.pre. transformers' PreTrainedTokenizerFast
over such a tokeniser gives the same ids.

    pip install numpy tokenizers
    python3 tools/make_tokenizer_golden.py ~/.cache/quern/smollm2-135m-instruct-q4_1.gguf tests/golden/tokenizer_smollm2.txt
    python3 tools/make_tokenizer_golden.py ggml-vocab-qwen2.gguf tests/golden/tokenizer_qwen2.txt

A line of the output is COUNT, TEXT and IDS, with tabs between: the text is TEXT, COUNT times. In TEXT, \\n, \\r, \\t, \\0 and \\\\ are
escapes.

SPDX-License-Identifier: Apache-2.0
"""
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import ggufio

CONTROL, USER = 3, 4

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    # languages and scripts
    "The quick brown fox doesn't jump over the lazy dog; it's asleep, they'll say. I'D, WE'VE, you're, 'tis",
    "Größenwahn, Straße, Äpfel, naïve façade, Ærøskøbing, İstanbul, Đà Nẵng, Łódź, žluťoučký kůň, ŒUVRE, ſtatus, it'ſ",
    "Быстрая коричневая лиса прыгает через ленивую собаку; Ελληνικά: Ταχίστη αλώπηξ βαφής; Հայերեն; ქართული",
    "我能吞下玻璃而不伤身体。「引用」、漢字かな交じり文、カタカナ ﾊﾝｶｸ。한국어 텍스트, 가나다라",
    "مرحبا بالعالم، كيف الحال؟ ١٢٣٤٥ مُحَمَّد ـــ لا إله",
    "שָׁלוֹם עוֹלָם, ייִדיש",
    "नमस्ते दुनिया, क्षत्रिय, १२३; বাংলা ভাষা; தமிழ் மொழி; తెలుగు; ಕನ್ನಡ; മലയാളം",
    "สวัสดีชาวโลก ພາສາລາວ ភាសាខ្មែរ မြန်မာဘာသာ བོད་ཡིག",
    "አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᚠᛇᚻ 𐍈𐌰𐌽 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟘𝟙𝟚 Ⅷ ½ ² ₃ ① ㊗",
    # letters with marks, composed and not
    "caf\u00e9 cafe\u0301 e\u0301\u0323 e\u0323\u0301 \u1e69 s\u0323\u0307 s\u0307\u0323 \u0301x \u212b \u2126 \u0958 \u0344",
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00 \uac00\u11a8 \u1100\uac00",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034da\u036b\u0357lgo",
    # emoji
    "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ❤️ ❤ ☺️ 1️⃣ 🧑🏿‍🚀🤷‍♀️ 🦙.cpp 🙂🙃",
    "\ue000 \U000f0000 \U0010ffff \ufffd \ufeffBOM \u00ad soft \u200b zero \u200d \u2060",
    # numbers
    "3.14159 1,000,000 0x1F 2024-12-31T23:59:60Z 1e-9 12345678901234567890 v1.2.3 50% $9.99 №5 a1b22c333",
    " 1 22  333   4444",
    # white space
    " ", "  ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", " \n \n", "a  b", "a   b\n", "a\n\n\n b", "\t\ta\t", "x \r\n y\r\r\n",
    "end  ", "  begin", "a\u00a0b\u2003\u3000c\u2028d\u0085e\u180ef\u1680g\u202fh\x0bi\x0cj\x1ck",
    # code
    "def f(x: int) -> str:\n    if x >= 10:\n        return f\"{x!r}\"  # done\n\n    return ''.join(map(str, [1, 2, 3]))\n",
    "for(int i=0;i<n;++i){a[i]^=b[i]<<3;}\r\n\tprintf(\"%08x\\n\", p->q); // ok\r\n",
    "SELECT * FROM t WHERE a<>'b' AND c LIKE '%d%';-- x\n<div class=\"a-b\">&nbsp;</div>\n\n```json\n{\"k\": [null, -1.5e+3]}\n```",
    "https://example.org/a/b?c=d&e=%20#f user@host.example C:\\dir\\file.txt ~/.cache $HOME `ls -la`",
    "...!!!??? --- ___ === *** ~~~ /// \\\\\\ ((())) [[]] {{}} <<>> || && ## @@ ;;",
    "'s 't 're 've 'm 'll 'd 'S 'LL ''s a's' 'ss",
    "\0a\0\0b\x01\x02\x7f\x1b[0m",
    # special tokens
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "a <|endoftext|> b<|endoftext|><|endoftext|>",
    "<|im_start|", "<|im_end>", "<<|im_end|>>", "<|endoftext|", "<repo_name>x<file_sep>y<|IM_END|>",
    # the empty text
    "",
]

RUNS = ["a", " ", "\n", "0", "!", "-", "=", "é", "e\u0301", "中", "ا", "🙂", "ab", " a", "\t ", "\r\n", "\u3000", "\u0301", "ha"]
RUN_COUNTS = [37, 250]


def build(keys):
    tokens, kinds, pre = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"], keys["tokenizer.ggml.pre"]
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    if pre == "smollm":
        made.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    elif pre == "qwen2":
        made.normalizer = normalizers.NFC()
        made.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        raise SystemExit(f"pre-tokeniser '{pre}': this script knows smollm and qwen2")
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, kinds) if k == CONTROL])
    made.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in zip(tokens, kinds) if k == USER])
    return made


def escape(text):
    for character, escaped in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"), ("\0", "\\0")):
        text = text.replace(character, escaped)
    return text


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    keys, _ = ggufio.read(sys.argv[1])
    tokenizer = build(keys)
    with open(sys.argv[2], "w", encoding="utf-8", newline="\n") as out:
        out.write(f"# made by tools/make_tokenizer_golden.py with tokenizers {tokenizers.__version__} from the vocabulary "
                  f"'{keys['general.name']}'; COUNT, TEXT, IDS\n")
        for count, text in [(1, t) for t in TEXTS] + [(c, t) for t in RUNS for c in RUN_COUNTS]:
            ids = tokenizer.encode(text * count, add_special_tokens=False).ids
            out.write(f"{count}\t{escape(text)}\t{' '.join(map(str, ids))}\n")


if __name__ == "__main__":
    main()
