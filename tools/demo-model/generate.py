"""Stage generate: stories of the given file in, the tuned teacher, stories that it wrote out.

Leaves stories.jsonl in the work folder: a line for a story with its text, its origin, and hero, name and things.

SPDX-License-Identifier: Apache-2.0
"""
import dataclasses
import itertools
import json
import os
import random
import time

import torch

import asking
import sift
import stories
from common import fail, log, save, save_json
from teacher import CHAT, Teacher, tune
from writing import Writer


def tuning_pairs(read, rng):
    return [(asking.request(s, rng), s.text) for s in read]


def make_requests(ideas, rng, n):
    """What each story is to be about, and the request for it. A request may leave out a part of the idea, which then does not count."""
    asked = [ideas.draw() for _ in range(n)]
    requests = [asking.request(i, rng, 0.05) for i in asked]
    for idea, text in zip(asked, requests):
        asking.keep_mentioned(idea, text)
    return asked, requests


def show_early(work, writer, teacher, requests):
    """The first stories, for whoever watches: what is wrong with them will be wrong with all."""
    some = list(itertools.islice(writer.stories(), 40))
    texts = teacher.decode([row for _, row in some])
    save(os.path.join(work, "early.txt"), lambda f: f.writelines(
        f"## {requests[i]}\n{text}\n\n" for (i, _), text in zip(some, texts)))


def run(work, sizes, stories_path, teacher_path, device, seconds):
    path = os.path.join(work, "stories.jsonl")
    if os.path.exists(path):
        return log(f"generate: {path} is there")
    began, rng = time.time(), random.Random(1)
    read = stories.read(stories_path)[:sizes.most_read]
    # The teacher sees none of what is held out.
    train = [s for s in read if not sift.is_held_out(s.text)]
    log(f"generate: {len(read)} stories read, {len(train)} of them to tune on")
    teacher = Teacher(teacher_path, sizes.teacher_layers)
    asked, requests = make_requests(asking.Ideas(train, rng), rng, sizes.requests)
    pairs = tuning_pairs(train, rng)
    words = {w for text in [*requests, *(r for r, _ in pairs)] for w in text.split()}
    teacher.keep_pieces([s.text for s in train] + [CHAT.format(request="")] + [x for w in words for x in (w, " " + w)])
    prompts = teacher.encode([CHAT.format(request=r) for r in requests])
    teacher.to(device)
    log(f"generate: teacher of {teacher.n_layers} layers, {len(teacher.piece)} pieces")
    tune(teacher, pairs, device, sizes.tune_steps, sizes.tune_batch)
    tuned = time.time()
    writer = Writer(teacher, prompts, sizes.slots, sizes.story_length, device, fuse=device.type == "cuda")
    log(f"generate: {sizes.slots} slots for {len(prompts)} requests, {torch.cuda.memory_allocated() / 2 ** 30:.0f} GiB"
        if device.type == "cuda" else f"generate: {sizes.slots} slots for {len(prompts)} requests")
    steps = writer.run(6)
    show_early(work, writer, teacher, requests)
    steps += writer.run(seconds - (time.time() - began))
    wrote = time.time()
    which, rows = zip(*writer.stories(), strict=True) if writer.finished.any() else ((), ())
    texts = teacher.decode(rows)
    log(f"generate: {steps} steps of {sizes.slots}, {len(texts)} stories, {sum(map(len, texts)) / 1e6:.1f} MB")
    memory = torch.cuda.max_memory_allocated() / 2 ** 30 if device.type == "cuda" else 0.0
    del writer, teacher
    written = [dataclasses.replace(asked[i], text=text) for i, text in zip(which, texts)]
    kept, counts = sift.sift(read, written, sizes.strict)
    if not kept:
        fail("generate: no story passed the filter")

    def write(f):
        for origin, story in kept:
            f.write(json.dumps({"origin": origin, **dataclasses.asdict(story)}) + "\n")
    save(path, write)
    save_json(os.path.join(work, "generate.json"), {
        "read": len(read), "tuned_seconds": tuned - began, "writing_seconds": wrote - tuned, "sifting_seconds": time.time() - wrote,
        "steps": steps, "slots": sizes.slots, "tokens_per_second": steps * sizes.slots / (wrote - tuned), "memory_gib": memory,
        **counts})
    shown = rng.sample([s for origin, s in kept if origin == "written"], min(200, sum(o == "written" for o, _ in kept)))
    save(os.path.join(work, "sample.txt"), lambda f: f.writelines(
        f"## {s.hero} | {s.name} | {', '.join(s.things)}\n{s.text}\n\n" for s in shown))
    log(f"generate: {counts}")
