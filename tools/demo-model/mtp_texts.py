"""What the block for multi-token prediction learns from: texts that the model itself wrote, as rows of tokens.

A drafter is asked about what the model says, so quern has it go on from beginnings of stories, and answer requests for them, at the
temperatures people use. The texts that acceptance is measured on begin as stories do that the recipe holds out (sift.py).

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import random
import subprocess

import numpy as np

import asking
import rows
import sift
import stories
from common import log, save, save_json

TEMPERATURES = (0, 0.6, 0.6, 0.8, 1.0)
ANSWER_TOKENS = 200
# Texts from held-out beginnings, half at each temperature.
HELD_OUT = 96
HELD_OUT_TEMPERATURES = (0, 0.6)
WATCHED_ROWS = 16
# A row's hidden states cost as much as a step with it: they are few, and met several times.
MOST_ROWS = 640


def beginning(text, rng):
    """The first words of a story: from three of them to half."""
    words = text.split(" ")
    return " ".join(words[:rng.randint(3, max(4, len(words) // 2))])


def request_lines(found, rng, temperatures, n):
    """n requests in OpenAI's batch format, half of them conversations."""
    lines = []
    for i in range(n):
        story, temperature = found[i % len(found)], temperatures[i % len(temperatures)]
        body = {"temperature": temperature, "seed": i, "max_tokens": ANSWER_TOKENS}
        if rng.random() < 0.5:
            body["messages"] = [{"role": "user", "content": asking.as_typed(asking.request(story, rng), rng)}]
        else:
            body["prompt"] = beginning(story.text, rng)
        url = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        lines.append(json.dumps({"custom_id": str(i), "method": "POST", "url": url, "body": body}))
    return lines


def write(work, name, lines, quern, model, seconds):
    """Has the model answer the requests, for as long as there is time; what is there when it is over serves."""
    asked, answered = (os.path.join(work, f"{name}.{kind}.jsonl") for kind in ("requests", "answers"))
    if os.path.exists(answered):
        return
    save(asked, lambda f: f.writelines(line + "\n" for line in lines))
    command = [quern, "batch", "-m", model, asked, answered + ".part", "-t", "2", "--draft", "off", "-c", "1024", "-q"]
    try:
        subprocess.run(command, check=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        log(f"{name}: {seconds:.0f} seconds are over")
    os.replace(answered + ".part", answered)


def documents(work, name):
    """[(text before, text written, temperature)] of the requests that were answered: whole documents if the text ended by itself."""
    asked = {}
    with open(os.path.join(work, f"{name}.requests.jsonl"), encoding="utf-8") as f:
        for line in f:
            request = json.loads(line)
            asked[request["custom_id"]] = request["body"]
    found = []
    with open(os.path.join(work, f"{name}.answers.jsonl"), encoding="utf-8") as f:
        for line in f:
            if not line.endswith("\n"):
                break  # cut where the time was over
            answer = json.loads(line)
            if answer.get("error"):
                continue
            body, choice = asked[answer["custom_id"]], answer["response"]["body"]["choices"][0]
            ended = choice["finish_reason"] == "stop"
            if "messages" in body:
                before, end = rows.conversation(body["messages"][0]["content"], "").removesuffix("<|im_end|>\n"), "<|im_end|>"
                written = choice["message"]["content"]
            else:
                before, end, written = body["prompt"], rows.SPECIAL[rows.END_OF_TEXT], choice["text"]
            found.append((before, written + (end if ended else ""), body["temperature"]))
    return found


def tokenizer(keys):
    """The file's vocabulary as rows.py trained it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = keys["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE({t: i for i, t in enumerate(pieces)}, merges))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(rows.SPECIAL)
    return tok


def run(work, given, keys, quern, model, width, n_requests, seconds):
    """rows.npy, watched.npy: rows [n, width] of documents to train on, and of held-out ones; heldout.json: [ids before, ids written,
    temperature]."""
    if os.path.exists(os.path.join(work, "texts.json")):
        return log("texts: they are there")
    rng = random.Random(21)
    read = stories.read(given)
    train = [s for s in read if not sift.is_held_out(s.text)]
    held_out = [s for s in read if sift.is_held_out(s.text)]
    rng.shuffle(train)
    rng.shuffle(held_out)
    write(work, "heldout", request_lines(held_out, rng, HELD_OUT_TEMPERATURES, HELD_OUT), quern, model, seconds)
    write(work, "own", request_lines(train, rng, TEMPERATURES, n_requests), quern, model, seconds)
    tok = tokenizer(keys)
    own = [b + w for b, w, _ in documents(work, "own")]
    packed = rows.pack([np.array(e.ids, np.uint16) for e in tok.encode_batch(own)], width, rng)[:MOST_ROWS]
    tests = [[tok.encode(b).ids, tok.encode(w).ids, t] for b, w, t in documents(work, "heldout")]
    watched = rows.pack([np.array(b + w, np.uint16) for b, w, _ in tests], width, rng)[:WATCHED_ROWS]
    for name, some in (("rows", packed), ("watched", watched)):
        save(os.path.join(work, f"{name}.npy"), lambda f, some=some: np.save(f, some), "wb")
    save_json(os.path.join(work, "heldout.json"), tests)
    n = int((packed != rows.PAD).sum())
    save_json(os.path.join(work, "texts.json"), {"texts": len(own), "rows": len(packed), "tokens": n})
    log(f"texts: {len(own)}, {len(packed)} rows of {width}, {n} tokens")
