"""Log probabilities of prompts from quern serve and quern batch, as lm-evaluation-harness asks for them and reads them
(`local-completions`), against those computed from the logits that `quern logits` writes of the same ids.

    serve_score.py MODEL FOLDER

QN_BIN names the folder of quern. FOLDER is for files.
"""
import array
import json
import math
import os
import subprocess
import sys
from operator import itemgetter

from serve_process import Server, ask

TEXT = "/v1/completions"
QUERN = os.path.join(os.environ["QN_BIN"], "quern")
# A float's rounding of a logarithm up to 32, written with 6 decimals.
TOLERANCE = 1e-5
PAIRS = [("Once upon a time, there was a", " little girl named Lily."), ("Once upon a time, there was a", " stone"), ("The cat", " sat on the mat"),
         ("a", "b"), ("Once upon a time, there was a little girl. " * 12 + "She liked", " to play in the park with her friends.")]


def run(*args):
    return subprocess.run([QUERN, *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL).stdout.decode()


class Reference:
    """Log probabilities of each token but the first, and whether it is the most likely one."""

    def __init__(self, model, folder):
        self.model, self.file = model, os.path.join(folder, "logits.f32")

    def ids(self, text):
        return [int(id) for id in run("tokenize", "-m", self.model, "--ids", text).split()]

    def score(self, ids):
        run("logits", "-m", self.model, "--ids", ",".join(map(str, ids)), "-o", self.file)
        logits = array.array("f")
        with open(self.file, "rb") as file:
            logits.frombytes(file.read())
        n_vocab = len(logits) // len(ids)
        scores = [(None, None)]
        for i, token in enumerate(ids[1:]):
            row = logits[i * n_vocab : (i + 1) * n_vocab]
            largest = max(row)
            total = largest + math.log(math.fsum(math.exp(x - largest) for x in row))
            scores.append((row[token] - total, row[token] == largest))
        return scores


def payload(prompts, **fields):
    """What the harness sends to score prompts."""
    return {"model": "m", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True, **fields}


def parse_logprobs(answer, ctxlens):
    """The harness: sums of continuations, and whether they are greedy."""
    result = []
    for choice, ctxlen in zip(sorted(answer["choices"], key=itemgetter("index")), ctxlens):
        assert ctxlen > 0
        values = choice["logprobs"]["token_logprobs"][ctxlen:-1]
        tops = choice["logprobs"]["top_logprobs"][ctxlen:-1]
        result.append((sum(values), all(value == max(top.values()) for value, top in zip(values, tops))))
    return result


def complete(server, body):
    status, _, answer = ask(server.port, "POST", TEXT, json.dumps(body).encode())
    assert status == 200, answer
    return json.loads(answer)


def check_lists(choice, scores, text):
    """The prompt's entries; the answer's follow."""
    lists, n = choice["logprobs"], len(scores)
    assert len({len(entries) for entries in lists.values()}) == 1, lists
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    for i, (value, is_greedy) in enumerate(scores[1:], 1):
        found, top = lists["token_logprobs"][i], lists["top_logprobs"][i]
        assert abs(found - value) < TOLERANCE, (i, found, value)
        assert top[lists["tokens"][i]] == found and (found == max(top.values())) == is_greedy, (i, found, top)
    assert choice["text"].startswith(text)
    assert all(choice["text"][at:].startswith(token) for at, token in zip(lists["text_offset"], lists["tokens"]) if not token.startswith("bytes:"))
    return {name: entries[n:] for name, entries in lists.items()}


def check_harness(server, reference):
    pairs = [(reference.ids(context), reference.ids(context + continuation)) for context, continuation in PAIRS]
    ctxlens = [min(len(context), len(whole) - 1) for context, whole in pairs]
    scores = [reference.score(whole) for _, whole in pairs]
    texts = [context + continuation for context, continuation in PAIRS]
    for prompts in ([whole for _, whole in pairs], texts):  # ids, as with a tokeniser of the harness; texts
        for fields in ({}, {"max_tokens": 0}):
            answer = complete(server, payload(prompts, **fields))
            if not fields:
                for (total, is_greedy), expected, ctxlen in zip(parse_logprobs(answer, ctxlens), scores, ctxlens):
                    assert abs(total - sum(value for value, _ in expected[ctxlen:])) < TOLERANCE * len(expected)
                    assert is_greedy == all(greedy for _, greedy in expected[ctxlen:])
            for choice, expected, text in zip(answer["choices"], scores, texts):
                rest = check_lists(choice, expected, text)
                assert len(rest["tokens"]) == (0 if fields else 1) and (not fields or choice["text"] == text)
                assert choice["finish_reason"] == "length" or not fields
            usage = answer["usage"]
            assert usage["prompt_tokens"] == sum(map(len, scores)) and usage["completion_tokens"] == (0 if fields else len(scores))
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def check_answers(server, reference):
    """The answer after a prompt is that of a request without it; choices, and streams."""
    text = PAIRS[-1][0]
    scores = reference.score(reference.ids(text))
    body = {"prompt": text, "max_tokens": 8, "logprobs": 3, "seed": 5, "n": 2}
    plain, whole = complete(server, body), complete(server, {**body, "echo": True})
    for one, both in zip(plain["choices"], whole["choices"]):
        rest = check_lists(both, scores, text)
        assert both["text"] == text + one["text"]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert rest[name] == one["logprobs"][name]
        assert [at - len(text) for at in rest["text_offset"]] == one["logprobs"]["text_offset"]
    status, _, events = ask(server.port, "POST", TEXT, json.dumps({**body, "echo": True, "stream": True}).encode())
    chunks = [json.loads(event[6:]) for event in events.decode().split("\n\n") if event.startswith("data: {")]
    assert status == 200
    for i, both in enumerate(whole["choices"]):
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == i]
        assert parts[0]["text"] == text and len(parts[0]["logprobs"]["tokens"]) == len(scores)
        assert "".join(part["text"] for part in parts) == both["text"]
        for name, entries in both["logprobs"].items():
            assert [entry for part in parts for entry in part["logprobs"][name]] == entries, (name, i)


def check_batch(model, reference, folder):
    lines, out = os.path.join(folder, "score.jsonl"), os.path.join(folder, "score.out")
    texts = [context + continuation for context, continuation in PAIRS]
    with open(lines, "w", encoding="utf-8") as file:
        file.write(json.dumps({"custom_id": "a", "method": "POST", "url": TEXT, "body": payload(texts, max_tokens=0)}) + "\n")
    run("batch", "-m", model, lines, out)
    with open(out, encoding="utf-8") as file:
        answer = json.loads(file.read())["response"]["body"]
    for choice, text in zip(answer["choices"], texts):
        check_lists(choice, reference.score(reference.ids(text)), text)


def main():
    model, folder = sys.argv[1:]
    reference = Reference(model, folder)
    check_batch(model, reference, folder)
    for options in ((), ("--kv", "f16", "--parallel", "1")):
        with Server(model, *options) as server:
            check_harness(server, reference)
            check_answers(server, reference)


main()
