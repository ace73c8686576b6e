"""Which stories are kept: whole, clean, about what was asked, and unlike the ones before. And which of them are held out.

SPDX-License-Identifier: Apache-2.0
"""
import collections
import multiprocessing
import os
import re
import zlib

HELD_OUT_PERCENT = 5
SHINGLE = 8
# One shingle in so many, chosen by its own hash, stands for all: the same ones are met in both copies.
SAMPLED = 8
REFUSALS = re.compile(r"\b(?:as an ai|i can't|i cannot help|i'm sorry, but|language model|here is a story|here's a|sure!|certainly)",
                      re.I)


def is_held_out(text):
    """By the document's own text: the same in every run."""
    return zlib.crc32(text.encode()) % 100 < HELD_OUT_PERCENT


def complaint(text):
    """Why a text is no story to learn from, or nothing."""
    if not text.isascii():
        return "not ascii"
    if not 240 <= len(text) <= 1600:
        return "length"
    if not (text[0].isupper() or text[0] == '"') or text[-1] not in '.!?"':
        return "beginning or end"
    if REFUSALS.search(text[:120]) or re.search(r"[<>{}\[\]|#*_=]|http|\d{3}", text):
        return "not a story"
    words = re.findall(r"[a-z']+", text.lower())
    # Different words grow with about this power of the length. Nine of ten stories of the given file pass, of the teacher's two of
    # three: it says the same thing again where it has no idea.
    if len(words) < 40 or len(set(words)) < 1.62 * len(words) ** 0.75:
        return "few words"
    sentences = collections.Counter(s for s in re.split(r'[.!?]["\']?\s+', text.lower()) if len(s) > 12)
    if sentences and sentences.most_common(1)[0][1] > 2:
        return "repeats a sentence"
    runs = collections.Counter(zip(words, words[1:], words[2:], words[3:]))
    if runs.most_common(1)[0][1] > 3 or sum(n - 1 for n in runs.values()) > 0.04 * len(words):
        return "repeats itself"
    return ""


def tidy(text):
    text = re.sub(r"[ \t]+", " ", text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2014: "-", 0x2013: "-"}))
    return re.sub(r" ?\n ?", "\n", re.sub(r"\n{3,}", "\n\n", text)).strip()


def missing(story):
    """Whether something that was asked for does not occur: the last word of hero and things, and the name."""
    lower = story.text.lower()
    asked = [phrase.split()[-1] for phrase in [story.hero, *story.things] if phrase]
    return any(w[:-1] not in lower for w in asked) or bool(story.name and story.name not in story.text)


def examine(job):
    story, strict = job
    story.text = tidy(story.text)
    why = complaint(story.text) if strict else ""
    if not why and missing(story) and strict:
        why = "not what was asked"
    words = re.findall(r"[a-z']+", story.text.lower())
    hashes = {zlib.crc32(" ".join(words[i:i + SHINGLE]).encode()) for i in range(len(words) - SHINGLE + 1)}
    return why, story, [h for h in hashes if h % SAMPLED == 0]


def sift(read, written, strict):
    """[(origin, story)] that stay, the read ones first, and how many went for which reason."""
    counts, seen, kept = collections.Counter(), set(), []
    # Not forked: this process may hold a GPU.
    with multiprocessing.get_context("spawn").Pool(min(16, os.cpu_count())) as pool:
        jobs = [(s, False) for s in read] + [(s, strict) for s in written]
        for n, (why, story, hashes) in enumerate(pool.imap(examine, jobs, chunksize=256)):
            known = sum(h in seen for h in hashes)
            if not why and hashes and known > len(hashes) * 0.3:
                why = "seen before"
            if why:
                counts[why] += 1
                continue
            seen.update(hashes)
            origin = "read" if n < len(read) else "written"
            counts[f"kept, {origin}"] += 1
            counts[f"bytes, {origin}"] += len(story.text)
            kept.append((origin, story))
    return kept, dict(counts)
