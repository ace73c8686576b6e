#!/usr/bin/env python3
"""Make tests/golden/ranker.gguf, a tiny random model that ranks documents, and ranker.scores, what it must give.

usage: make_ranker_model.py tests/golden/ranker

The file has what llama.cpp's converter writes for Qwen3-Reranker (conversion/qwen.py): pooling_type 4, the labels "yes" and "no",
a head whose rows are those of two tokens in the output matrix, and the prompt as the chat template "rerank". ranker.scores has a line
for each document, fields separated by tabs: score, token ids separated by commas, query, document. Scores are a softmax of two logits
that tools/reference_logits.py computes in float64. The vocabulary is the 256 bytes and special tokens, so ids are bytes; the special
tokens in queries and documents are text.

Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import sys

import numpy as np

import ggufio
import reference_logits
from make_parrot_model import MERGES, SPECIAL, byte_characters

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FF = 64, 2, 4, 2, 32, 64
PROMPT = "<|im_start|>system\nAnswer yes or no.<|im_end|>\n<|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
LABELS = ["yes", "no"]
TEXTS = [("a mill", "A quern is a mill for grain."), ("a mill", "The sun is a star."), ("a mill", ""), ("a mill", "x"),
         ("stars", "The sun is a star."), ("Zähne", "Ein Zahn ist ein Zahn, und Zähne sind Zähne. " * 5),
         ("{document}", "<|im_end|> and {query} are text"), ("a mill", "A quern is a mill for grain. " * 12)]


def ids_of(vocab, query, document):
    """The prompt's special tokens, and bytes."""
    ids = []
    for part in ["<|im_start|>", "system\nAnswer yes or no.", "<|im_end|>", "\n", "<|im_start|>", "user\n<Query>: ", ("text", query), "\n<Document>: ",
                 ("text", document), "<|im_end|>", "\n"]:
        ids += [vocab.index(part)] if part in SPECIAL else list((part[1] if isinstance(part, tuple) else part).encode())
    return np.array(ids)


def main(path):
    spelled, rng = byte_characters(), np.random.default_rng(7)
    vocab = [spelled[b] for b in range(256)] + [m.replace(" ", "") for m in MERGES] + SPECIAL
    tensors = []

    def add(name, values, kind="f16"):
        tensors.append(ggufio.Tensor(name, values.shape, kind, ggufio.encode_plain(kind, values)))

    def matrix(name, n_out, n_in, scale=1.0):
        add(name, rng.normal(0, scale * n_in ** -0.5, (n_out, n_in)))

    matrix("token_embd.weight", len(vocab), HIDDEN, HIDDEN ** 0.5)
    add("output_norm.weight", rng.uniform(0.5, 1.5, HIDDEN), "f32")
    output = rng.normal(0, 3 * HIDDEN ** -0.5, (len(vocab), HIDDEN)).astype(np.float16)
    rows = [vocab.index(name) for name in ("y", "n")]
    add("output.weight", output.astype(np.float64))
    add("cls.output.weight", output[rows].astype(np.float64))
    for i in range(LAYERS):
        b = f"blk.{i}."
        add(b + "attn_norm.weight", rng.uniform(0.5, 1.5, HIDDEN), "f32")
        matrix(b + "attn_q.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(b + "attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(b + "attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(b + "attn_output.weight", HIDDEN, HEADS * HEAD_DIM, 2)
        add(b + "attn_q_norm.weight", rng.uniform(0.5, 1.5, HEAD_DIM), "f32")
        add(b + "attn_k_norm.weight", rng.uniform(0.5, 1.5, HEAD_DIM), "f32")
        add(b + "ffn_norm.weight", rng.uniform(0.5, 1.5, HIDDEN), "f32")
        matrix(b + "ffn_gate.weight", FF, HIDDEN)
        matrix(b + "ffn_up.weight", FF, HIDDEN)
        matrix(b + "ffn_down.weight", HIDDEN, FF)

    keys = {
        "general.architecture": "qwen3",
        "general.name": "ranker",
        "qwen3.block_count": LAYERS,
        "qwen3.context_length": 1024,
        "qwen3.embedding_length": HIDDEN,
        "qwen3.feed_forward_length": FF,
        "qwen3.attention.head_count": HEADS,
        "qwen3.attention.head_count_kv": KV_HEADS,
        "qwen3.attention.key_length": HEAD_DIM,
        "qwen3.attention.value_length": HEAD_DIM,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 10000.0,
        "qwen3.pooling_type": 4,
        "qwen3.classifier.output_labels": LABELS,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [1] * (256 + len(MERGES)) + [3] * len(SPECIAL),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": vocab.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": vocab.index("<|endoftext|>"),
        "tokenizer.chat_templates": ["rerank"],
        "tokenizer.chat_template.rerank": PROMPT,
    }
    ggufio.write(path + ".gguf", keys, tensors)
    model = reference_logits.Model(path + ".gguf")
    with open(path + ".scores", "w", encoding="utf-8") as scores:
        for query, document in TEXTS:
            ids = merged(ids_of(vocab, query, document), vocab)
            a, b = model.logits(ids)[-1, rows]
            scores.write(f"{1 / (1 + np.exp(b - a)):.9f}\t{','.join(map(str, ids))}\t{query}\t{document}\n")


def merged(ids, vocab):
    """Applies the three merges, which do not overlap but in " the"."""
    for merge in MERGES:
        left, right = (vocab.index(part) for part in merge.split(" "))
        out, i = [], 0
        while i < len(ids):
            pair = i + 1 < len(ids) and ids[i] == left and ids[i + 1] == right
            out.append(vocab.index(merge.replace(" ", "")) if pair else int(ids[i]))
            i += 1 + pair
        ids = out
    return np.array(ids)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
