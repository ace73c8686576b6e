"""Stages tokenizer and rows: a byte-level BPE of the stories, and the stories as rows of tokens to train on.

A document is a story as it is, now and then from a later sentence on, or a conversation in ChatML in which it is asked for. Rows are
filled with whole documents, so every row begins as a text begins, and little of it is padding.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import random
import re

import numpy as np

import asking
import sift
from common import log, save, save_json
from stories import Story

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_OF_TEXT = 0
PAD = 65535
# Stories of the given file are fewer and better: how often each is taken where a written one is taken once.
READ_TIMES = 3
# What is held out is measured as plain stories, up to this many of them, the read ones first.
HELD_OUT = 3000


def load(work):
    """[(origin, story)] of the stage before."""
    found = []
    with open(os.path.join(work, "stories.jsonl"), encoding="utf-8") as f:
        for line in f:
            fields = json.loads(line)
            found.append((fields.pop("origin"), Story(**fields)))
    return found


def train_tokenizer(work, sizes, documents):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    path = os.path.join(work, "tokenizer.json")
    if os.path.exists(path):
        return Tokenizer.from_file(path)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=sizes.vocab, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    rng = random.Random(2)
    texts = [s.text for _, s in documents if not sift.is_held_out(s.text)]
    asked = [asking.request(s, rng) for _, s in documents[:20000]]
    tok.train_from_iterator(rng.sample(texts, min(60000, len(texts))) + asked, trainer)
    n = tok.get_vocab_size()
    if n != sizes.vocab:
        raise SystemExit(f"tokenizer: {n} pieces, expected {sizes.vocab}")
    save(path, lambda f: f.write(tok.to_str()))
    log(f"tokenizer: {n} pieces")
    return tok


def conversation(question, answer):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def from_a_sentence(text, rng):
    starts = [m.end() for m in re.finditer(r"[.!?] (?=[A-Z])|\n\n(?=[A-Z])", text[:len(text) // 2])]
    return text[rng.choice(starts):] if starts else text


def documents_of(stories, rng):
    """Texts to train on, each story once (the read ones more often), half of them as conversations."""
    for origin, story in stories:
        for _ in range(READ_TIMES if origin == "read" else 1):
            kind = rng.random()
            if kind < 0.5:
                yield conversation(asking.as_typed(asking.request(story, rng), rng), story.text)
            else:
                yield (from_a_sentence(story.text, rng) if kind < 0.58 else story.text) + SPECIAL[END_OF_TEXT]
    for _ in range(len(stories) // 50):
        questions, answers = rng.choice(asking.TALK)
        yield conversation(asking.as_typed(rng.choice(questions), rng), rng.choice(answers))


def pack(documents, width, rng):
    """Rows [n, width] of whole documents, PAD at the ends: each goes where it leaves the least room."""
    order = [d for d in documents if len(d) <= width]
    rng.shuffle(order)
    rows, room = [], [[] for _ in range(width + 1)]
    free_space_mask = 0  # bit r: some row has room r
    for d in order:
        fitting = free_space_mask >> len(d)
        if fitting:
            r = len(d) + (fitting & -fitting).bit_length() - 1
            row = room[r].pop()
            if not room[r]:
                free_space_mask &= ~(1 << r)
        else:
            r, row = width, len(rows)
            rows.append([])
        rows[row].append(d)
        r -= len(d)
        room[r].append(row)
        free_space_mask |= 1 << r
    out = np.full((len(rows), width), PAD, np.uint16)
    for i, parts in enumerate(rows):
        rng.shuffle(parts)
        line = np.concatenate(parts)
        out[i, :len(line)] = line
    return out


def run(work, sizes):
    if os.path.exists(os.path.join(work, "rows.json")):
        return log("rows: they are there")
    found = load(work)
    tok = train_tokenizer(work, sizes, found)
    train = [(o, s) for o, s in found if not sift.is_held_out(s.text)]
    held_out = [(o, s) for o, s in found if sift.is_held_out(s.text)]
    packed = []
    # Twice over, told apart by form and request: the data is seen several times.
    for variant in range(2):
        rng = random.Random(3 + variant)
        texts = list(documents_of(train, rng))
        documents = [np.array(e.ids, np.uint16) for start in range(0, len(texts), 20000)
                     for e in tok.encode_batch(texts[start:start + 20000])]
        packed.append(pack(documents, sizes.row, rng))
    rows = np.concatenate(packed)
    filled = float((rows != PAD).mean())
    random.Random(5).shuffle(held_out)
    held_out.sort(key=lambda pair: pair[0] != "read")
    texts = [(o, s.text) for o, s in held_out if len(s.text) < 1500][:HELD_OUT]
    # Enough rows for one step, to watch while training.
    plain = [np.array(e.ids, np.uint16) for e in tok.encode_batch([t + SPECIAL[END_OF_TEXT] for _, t in texts])]
    watched = pack(plain, sizes.row, random.Random(6))[:sizes.rows_a_step]
    save(os.path.join(work, "watched.npy"), lambda f: np.save(f, watched), "wb")
    save(os.path.join(work, "rows.npy"), lambda f: np.save(f, rows), "wb")
    save_json(os.path.join(work, "heldout.json"), texts)
    save_json(os.path.join(work, "rows.json"), {
        "rows": len(rows), "filled": filled, "tokens": int((rows != PAD).sum()), "held_out": len(held_out),
        "train_documents": len(train), "train_bytes": sum(len(s.text) for _, s in train)})
    log(f"rows: {len(rows)} of {sizes.row}, {filled:.1%} filled, {len(train)} stories to train on, {len(held_out)} held out")
