"""Routes of quern serve besides chats and completions: embeddings, prompts with a gap, slots, Ollama's API, vLLM's tokeniser.

    serve_routes.py DEMO GOLDEN FOLDER

DEMO is models/quern-demo.gguf, GOLDEN the folder of golden models. FOLDER is for files. QN_BIN names the folder of quern.
"""
import array
import asyncio
import json
import math
import os
import struct
import sys

from serve_process import LIMIT, Connection, Server, ask

EMBEDDINGS, TEXT, CHAT = "/v1/embeddings", "/v1/completions", "/v1/chat/completions"
LONG = "Once upon a time there was a girl who counted stars. "


def post(server, path, body, status=200, headers=()):
    found, head, data = ask(server.port, "POST", path, body, headers)
    assert found == status, (path, str(body)[:300], found, data[:500])
    return json.loads(data)


def get(server, path, status=200, headers=()):
    found, _, data = ask(server.port, "GET", path, headers=headers)
    assert found == status, (path, found, data[:500])
    return json.loads(data)


# ---- Files of models ----


class Gguf:
    """The parts of a GGUF file: bytes of its keys, tensors with their places, offset of its data."""

    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = file.read()
        self.at = 8
        n_tensors, self.n_keys = self.number("Q"), self.number("Q")
        self.keys_at = self.at
        for _ in range(self.n_keys):
            self.text()
            self.skip(self.number("I"))
        self.keys_end = self.at
        self.tensors = {}
        for _ in range(n_tensors):
            name = self.text()
            shape = [self.number("Q") for _ in range(self.number("I"))]
            self.tensors[name] = shape, self.number("I"), self.number("Q")
        self.tensors_end = self.at
        self.data_at = (self.at + 31) // 32 * 32

    def number(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def text(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n : self.at].decode()

    def skip(self, kind):
        if kind == 8:
            self.text()
        elif kind == 9:
            inner, n = self.number("I"), self.number("Q")
            for _ in range(n):
                self.skip(inner)
        else:
            self.at += self.SIZES[kind]

    def with_ids(self, path, ids):
        """Writes a copy with these keys of token ids and bools."""
        added = b"".join(struct.pack("<Q", len(name)) + name.encode() +
                         (struct.pack("<I?", 7, value) if isinstance(value, bool) else struct.pack("<II", 4, value)) for name, value in ids.items())
        head = (self.data[:16] + struct.pack("<Q", self.n_keys + len(ids)) + self.data[self.keys_at : self.keys_end] + added +
                self.data[self.keys_end : self.tensors_end])
        with open(path, "wb") as file:
            file.write(head + bytes(-len(head) % 32) + self.data[self.data_at :])

    def floats(self, name):
        shape, kind, offset = self.tensors[name]
        assert kind == 0, "it is f32"
        begin, n = self.data_at + offset, math.prod(shape)
        return array.array("f", self.data[begin : begin + 4 * n]), shape


# ---- Embeddings ----


def near(a, b, tolerance=1e-6):
    return len(a) == len(b) and max(abs(x - y) for x, y in zip(a, b)) <= tolerance


def check_hidden_states(golden):
    """The embedding of a prefix is the input of the output matrix: their product is the prefix' row of the logits that transformers
    has computed (tests/golden/README.md)."""
    name = os.path.join(golden, "qwen3-untied.f32")
    with open(name + ".ids") as file:
        ids = [int(id) for id in file.read().replace(",", " ").split()]
    logits = array.array("f")
    with open(name + ".logits.f32", "rb") as file:
        logits.frombytes(file.read())
    n_vocab = len(logits) // len(ids)
    weights, (n_embd, rows) = Gguf(name + ".gguf").floats("output.weight")
    assert rows == n_vocab
    with Server(name + ".gguf") as server:
        lengths = (1, 2, len(ids) // 2, len(ids))
        found = post(server, "/embedding", {"input": [ids[:n] for n in lengths], "embd_normalize": -1, "pooling": "last"})
        for n, item in zip(lengths, found):
            (state,) = item["embedding"]
            expected = logits[(n - 1) * n_vocab : n * n_vocab]
            computed = [math.fsum(w * x for w, x in zip(weights[t * n_embd : (t + 1) * n_embd], state)) for t in range(n_vocab)]
            error = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(computed, expected)) / math.fsum(b * b for b in expected))
            assert error < 0.02, f"the logits of {n} tokens are {error} off"
        last = [post(server, "/embedding", {"input": ids[:n], "embd_normalize": -1})[0]["embedding"][0] for n in range(1, 6)]
        mean, first = (post(server, "/embedding", {"input": ids[:5], "embd_normalize": -1, "pooling": p})[0]["embedding"][0] for p in ("mean", "cls"))
        assert near(mean, [math.fsum(values) / 5 for values in zip(*last)], 1e-5) and first == last[0]
        post(server, EMBEDDINGS, {"input": "a"}, 400)  # it has no tokeniser
        chat = {"messages": [{"role": "user", "content": "a"}]}
        for path, body in ((EMBEDDINGS, {"input": "a"}), ("/tokenize", {"content": "a"}), ("/completion", {"prompt": "a"}), ("/v1/chat/completions", chat)):
            refused = ask(server.port, "POST", path, body)[2]
            assert b"error" in refused and b"golden" not in refused, (path, refused)  # nor does it tell where the file is
        post(server, EMBEDDINGS, {"input": [n_vocab]}, 400)


def check_embeddings(demo):
    with Server(demo, "--alias", "demo", "--max-queued", "40") as server:
        texts = [LONG * n + str(n) for n in range(1, 9)]
        found = post(server, EMBEDDINGS, {"input": texts, "model": "any"})
        assert found["object"] == "list" and found["model"] == "any" and [item["index"] for item in found["data"]] == list(range(8))
        n = sum(len(post(server, "/tokenize", {"content": text})["tokens"]) for text in texts)
        assert found["usage"] == {"prompt_tokens": n, "total_tokens": n}
        vectors = [item["embedding"] for item in found["data"]]
        assert all(abs(math.fsum(x * x for x in v) - 1) < 1e-5 for v in vectors)
        for text, vector in zip(texts, vectors):
            ids = post(server, "/tokenize", {"content": text})["tokens"]
            assert post(server, EMBEDDINGS, {"input": ids})["data"][0]["embedding"] == vector  # also with a cached prefix
        assert not near(vectors[0], vectors[1], 1e-3)
        log = [json.loads(line) for line in server.text().splitlines() if line.startswith("{")]
        (first,) = [line for line in log if line["path"] == EMBEDDINGS][:1]
        assert first["prompt_tokens"] == n and first["completion_tokens"] == 0 and first["status"] == 200, first
        assert server.metric("quern_prompt_tokens_total") >= n
        assert "were not" not in server.text() and server.text().count("names no pooling") == 1
        status, head, _ = ask(server.port, "POST", EMBEDDINGS, {"input": "a"})
        assert status == 200 and "names no pooling" in head["x-quern-warning"]
        post(server, EMBEDDINGS, {"input": ["a"] * 41}, 400)
        assert len(post(server, EMBEDDINGS, {"input": ["a"] * 40})["data"]) == 40


def check_file(demo, folder):
    """A file may name the pooling, and that texts end with the end of text."""
    path = os.path.join(folder, "embedding.gguf")
    Gguf(demo).with_ids(path, {"qwen35.pooling_type": 1, "tokenizer.ggml.add_eos_token": True})
    with Server(path) as server:
        status, head, body = ask(server.port, "POST", EMBEDDINGS, {"input": LONG})
        ids = post(server, "/tokenize", {"content": LONG})["tokens"]
        end = post(server, "/tokenize", {"content": get(server, "/tokenizer_info")["eos_token"]})["tokens"]
        found = json.loads(body)
        assert status == 200 and "x-quern-warning" not in head and found["usage"]["prompt_tokens"] == len(ids) + 1
        assert post(server, EMBEDDINGS, {"input": ids + end, "pooling": "mean"})["data"] == found["data"]
        assert "embedding" in post(server, "/api/show", {"model": "m"})["capabilities"]
    with Server(path, "-c", "64") as server:
        # A text that is cut keeps the end of text in its last place, as poolings of the last token need it.
        ids = post(server, "/tokenize", {"content": LONG * 20})["tokens"]
        (cut,) = post(server, "/api/embed", {"model": "m", "input": LONG * 20})["embeddings"]
        with_end, without = (post(server, EMBEDDINGS, {"input": given})["data"][0]["embedding"] for given in (ids[:63] + end, ids[:64]))
        assert cut == with_end and not near(cut, without, 1e-3)
    with Server(demo, "--pooling", "cls") as server:
        assert post(server, EMBEDDINGS, {"input": LONG}) == post(server, EMBEDDINGS, {"input": LONG, "pooling": "cls"})


# ---- Ranking ----


def check_ranking(golden):
    """Scores are those of tools/make_ranker_model.py, in the order of scores, in both forms of answers."""
    name = os.path.join(golden, "ranker")
    with open(name + ".scores", encoding="utf-8") as lines:
        cases = [line.rstrip("\n").split("\t") for line in lines]
    mill = [case for case in cases if case[2] == "a mill"]
    texts, order = [case[3] for case in mill], sorted(range(len(mill)), key=lambda i: -float(mill[i][0]))
    body = {"query": "a mill", "documents": texts}
    with Server(name + ".gguf", "--kv", "f32", "-c", "600", "--alias", "ranker", "--parallel", "2", "--max-queued", "9") as server:
        for path in ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking"):
            found = post(server, path, body)
            assert [r["index"] for r in found["results"]] == order and found["object"] == "list" and found["model"] == "ranker", (path, found)
            assert all(abs(r["relevance_score"] - float(mill[r["index"]][0])) < 1e-5 and len(r) == 2 for r in found["results"])
            n_tokens = sum(len(case[1].split(",")) for case in mill)
            assert found["usage"] == {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        of_objects = post(server, "/v1/rerank", {**body, "documents": [{"text": text} for text in texts], "top_n": 2, "return_documents": True})
        assert [(r["index"], r["document"]["text"]) for r in of_objects["results"]] == [(i, texts[i]) for i in order[:2]]
        listed = post(server, "/rerank", {"query": "a mill", "texts": texts, "return_text": True, "top_n": 99})
        assert [(r["index"], r["text"], r["score"]) for r in listed] == [(r["index"], texts[r["index"]], r["relevance_score"]) for r in found["results"]]
        for case in cases:
            (result,) = post(server, "/rerank", {"query": case[2], "documents": [case[3]]})["results"]
            assert abs(result["relevance_score"] - float(case[0])) < 1e-5
        for wrong in ({"documents": texts}, {**body, "query": ""}, {**body, "query": 3}, {**body, "query": "a" * 16385}, {"query": "a"},
                      {**body, "documents": []}, {**body, "documents": "a"}, {**body, "documents": ["a", 3]}, {**body, "documents": [{"a": "b"}]},
                      {**body, "top_n": 0}, {**body, "return_text": 1}, {**body, "documents": ["a"] * 10}, {**body, "documents": ["a", "b" * 600]}):
            assert post(server, "/rerank", wrong, 400)["error"]["message"], wrong
        post(server, EMBEDDINGS, {"input": "a"})
    with Server(os.path.join(golden, "parrot.gguf")) as server:
        message = post(server, "/rerank", body, 501)["error"]["message"]
        assert "no head that ranks documents" in message and "/" not in message, message


async def aside(what, *args, **named):
    """Calls what runs a loop of its own."""
    return await asyncio.to_thread(what, *args, **named)


async def until_idle(server, headers):
    while any(slot["is_processing"] for slot in await aside(get, server, "/slots", headers=headers)):
        await asyncio.sleep(0.05)


async def check_fairness(server):
    """The texts of one client do not stall the stream of another: its tokens come while they are evaluated. A client that goes away
    cancels them."""
    bob, ann = {"X-Api-Key": "bob"}, {"X-Api-Key": "ann"}
    stream, embedder = Connection(server.port), Connection(server.port)
    await stream.send("POST", TEXT, {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "stream": True}, bob)
    await stream.reader.readuntil(b"data: ")
    await embedder.send("POST", EMBEDDINGS, {"input": [LONG * 120 + str(i) for i in range(8)]}, ann)
    n_between, ends = 0, asyncio.create_task(embedder.receive("POST"))
    while not ends.done() and n_between < 290:
        await asyncio.wait_for(stream.reader.readuntil(b"\n\n"), LIMIT)
        n_between += 1
    status, _, body = await ends
    assert status == 200 and len(json.loads(body)["data"]) == 8 and n_between >= 20, n_between
    stream.close()
    await embedder.send("POST", EMBEDDINGS, {"input": [LONG * 150 + str(i) for i in range(30)]}, ann)
    await asyncio.sleep(0.2)
    embedder.close()
    await until_idle(server, bob)


# ---- Gaps ----


def check_gaps(demo, folder):
    path = os.path.join(folder, "infill.gguf")
    with Server(demo) as server:
        ids = [post(server, "/tokenize", {"content": text, "parse_special": True})["tokens"] for text in ("<|im_start|>", "<|im_end|>")]
        post(server, "/infill", {"input_prefix": "a", "input_suffix": "b"}, 501)
        post(server, TEXT, {"prompt": "a", "suffix": "b"}, 501)
        assert "insert" not in post(server, "/api/show", {"model": "m"})["capabilities"]
    prefix, suffix, middle = ids[0][0], 7, ids[0][0] + 1 if ids[0][0] + 1 != ids[1][0] else 8
    Gguf(demo).with_ids(path, {f"tokenizer.ggml.fim_{name}_token_id": id for name, id in (("pre", prefix), ("suf", suffix), ("mid", middle))})
    with Server(path, "--seed", "1") as server:
        tokens = lambda text: post(server, "/tokenize", {"content": text, "parse_special": False})["tokens"]
        expected = [prefix, *tokens("def f(x):\n    ret"), suffix, *tokens("\n\nf(1)\n"), middle]
        body = {"input_prefix": "def f(x):\n", "prompt": "    ret", "input_suffix": "\n\nf(1)\n", "n_predict": 12, "temperature": 0}
        found, plain = post(server, "/infill", body), post(server, "/completion", {"prompt": expected, "n_predict": 12, "temperature": 0})
        assert found["content"] == plain["content"] and found["prompt"] == plain["prompt"] and found["tokens_evaluated"] == len(expected)
        status, _, data = ask(server.port, "POST", "/infill", {**body, "stream": True})
        assert status == 200 and "".join(json.loads(line[6:])["content"] for line in data.decode().splitlines() if line.startswith("data: {")) == found["content"]
        of_openai = post(server, TEXT, {"prompt": "def f(x):\n    ret", "suffix": "\n\nf(1)\n", "max_tokens": 12, "temperature": 0})
        assert of_openai["choices"][0]["text"] == found["content"]
        of_ollama = post(server, "/api/generate", {"model": "m", "prompt": "def f(x):\n    ret", "suffix": "\n\nf(1)\n", "stream": False,
                                                   "options": {"num_predict": 12, "temperature": 0}})
        assert of_ollama["response"] == found["content"]
        cut = post(server, "/infill", {"input_prefix": LONG * 400, "input_suffix": LONG * 400, "n_predict": 1})
        assert cut["tokens_evaluated"] <= 2048 - 1
        assert "insert" in post(server, "/api/show", {"model": "m"})["capabilities"]


# ---- Slots and keys ----

KEYED = [("POST", EMBEDDINGS), ("POST", "/embedding"), ("POST", "/infill"), ("POST", "/api/chat"), ("POST", "/api/generate"), ("POST", "/api/show"),
         ("POST", "/api/embed"), ("POST", "/api/embeddings"), ("GET", "/api/tags"), ("GET", "/api/ps"), ("GET", "/api/version"), ("GET", "/slots"),
         ("GET", "/tokenizer_info"), ("POST", "/rerank"), ("POST", "/slots/0"), ("POST", "/api/pull")]


async def check_slots(server):
    bob, ann, operators = ({"X-Api-Key": name} for name in ("bob", "ann", "ops"))
    for method, path in KEYED:
        status, _, body = await aside(ask, server.port, method, path, {} if method == "POST" else None)
        error = json.loads(body)["error"]
        assert status == 401 and ("key" in error if path.startswith("/api/") else "key" in error["message"]), (path, status, body)
    await aside(post, server, "/slots/0?action=erase", {}, 501, bob)
    await aside(post, server, "/rerank", {"query": "a", "documents": ["b"]}, 501, bob)
    slots = await aside(get, server, "/slots", headers=bob)
    assert [slot["id"] for slot in slots] == [0, 1, 2] and not any(slot["is_processing"] for slot in slots) and slots[0]["n_ctx"] == 2048
    streams = []
    for i in range(3):
        stream = Connection(server.port)
        await stream.send("POST", TEXT, {"prompt": f"Once {i}", "max_tokens": 1500, "ignore_eos": True, "stream": True}, ann if i else bob)
        await stream.reader.readuntil(b"data: ")
        streams.append(stream)
    seen = {name: [slot for slot in await aside(get, server, "/slots", headers=key) if slot["is_processing"]] for name, key in
            (("bob", bob), ("ann", ann), ("all", operators))}
    assert all(len(slots) == 3 for slots in seen.values())
    assert [sum("next_token" in slot for slot in seen[name]) for name in ("bob", "ann", "all")] == [1, 2, 3]
    assert all(("next_token" in slot) == (slot["id_task"] >= 0) for slots in seen.values() for slot in slots), "numbers of others' requests"
    (token,) = next(slot for slot in seen["bob"] if "next_token" in slot)["next_token"]
    assert token["n_decoded"] > 0 and token["n_remain"] + token["n_decoded"] == 1500
    await aside(get, server, "/slots?fail_on_no_slot=1", 503, bob)
    await aside(get, server, "/slots?fail_on_no_slot=0", 200, bob)
    for stream in streams:
        stream.close()
    await until_idle(server, bob)
    await aside(get, server, "/slots?fail_on_no_slot=1", 200, bob)


# ---- Ollama, and the tokeniser ----


def lines_of(body):
    return [json.loads(line) for line in body.decode().splitlines()]


def check_ollama(demo):
    with Server(demo, "--alias", "demo") as server:
        assert get(server, "/api/version")["version"].count(".") == 2
        (model,) = get(server, "/api/tags")["models"]
        assert model["name"] == model["model"] == "demo" and len(model["digest"]) == 64 and model["details"]["format"] == "gguf"
        body = {"model": "demo:latest", "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 6, "temperature": 0}}
        status, head, data = ask(server.port, "POST", "/api/chat", body)
        lines = lines_of(data)
        assert status == 200 and head["content-type"] == "application/x-ndjson" and [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        whole = post(server, "/api/chat", {**body, "stream": False})
        assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"] and whole["eval_count"] == 6
        same = post(server, CHAT, {"messages": body["messages"], "max_tokens": 6, "temperature": 0})
        assert same["choices"][0]["message"]["content"] == whole["message"]["content"]
        assert isinstance(post(server, "/api/chat", {"messages": []}, 400)["error"], str)
        assert isinstance(get(server, "/api/nothing", 404)["error"], str)
        assert isinstance(post(server, "/api/chat", {**body, "messages": [{"role": "user", "content": LONG * 500}]}, 400)["error"], str)
        post(server, "/api/pull", {"model": "a"}, 501)
        short = post(server, "/api/embed", {"model": "m", "input": [LONG * 500], "truncate": True})
        assert short["prompt_eval_count"] == 2048 and post(server, "/api/embed", {"model": "m", "input": LONG * 500, "truncate": False}, 400)
        assert "quern_http_requests_total" not in server.text()
        assert any('"/api/chat"' in sample and '"200"' in sample for sample in server.metrics()), "requests are counted by their route"


def check_tokenizer(demo):
    """As lm-evaluation-harness' RemoteTokenizer asks."""
    with Server(demo) as server:
        info = get(server, "/tokenizer_info")
        assert info["eos_token"] == "<|im_end|>" and "{%" in info["chat_template"] and info["model_max_length"] == 2048
        found = post(server, "/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False})
        assert found["tokens"] == post(server, "/tokenize", {"content": "Once upon a time"})["tokens"]
        assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 2048
        assert post(server, "/detokenize", {"tokens": found["tokens"]})["prompt"] == "Once upon a time"
        assert len(post(server, "/tokenize", {"prompt": info["eos_token"]})["tokens"]) == 1
        props = get(server, "/props")
        assert props["chat_template"] == info["chat_template"] and props["eos_token"] == info["eos_token"]


def check_progress(demo):
    with Server(demo, "--batch", "64") as server:
        for path, body in ((CHAT, {"messages": [{"role": "user", "content": LONG * 30}]}), ("/completion", {"prompt": LONG * 31})):
            status, _, data = ask(server.port, "POST", path, {**body, "max_tokens": 3, "stream": True, "return_progress": True})
            chunks = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
            progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
            done = [p["processed"] for p in progress]
            assert status == 200 and len(progress) > 3 and done == sorted(set(done)) and done[-1] == progress[-1]["total"], progress
            assert done[0] == progress[0]["cache"] and len({p["cache"] for p in progress}) == 1


def check_reasoning(golden):
    model = os.path.join(golden, "agent.gguf")
    ask_it = {"messages": [{"role": "user", "content": "Hm?"}]}
    rendered, texts = {}, {}
    for state in ("on", "off", "auto"):
        with Server(model, "--reasoning", state) as server:
            texts[state] = [post(server, "/apply-template", {**ask_it, **fields})["prompt"] for fields in
                            ({}, {"enable_thinking": True}, {"enable_thinking": False})]
            rendered[state] = [post(server, CHAT + "/input_tokens", {**ask_it, **fields})["input_tokens"] for fields in
                               ({}, {"enable_thinking": True}, {"enable_thinking": False}, {"reasoning": "off"}, {"reasoning": "on"})]
    on, off, auto = (rendered[state] for state in ("on", "off", "auto"))
    assert on[1:] == off[1:] == auto[1:] and on[1] == on[4] and on[2] == on[3], rendered
    assert on[0] == on[1] and off[0] == off[2], rendered
    assert texts["on"][0] == texts["on"][1] != texts["off"][0] == texts["off"][2], texts
    assert texts["on"][1:] == texts["off"][1:] == texts["auto"][1:], texts


def main():
    demo, golden, folder = sys.argv[1:]
    keys = os.path.join(folder, "keys")
    with open(keys, "w") as file:
        file.write("bob: bob\nann: ann\nmetrics: ops\n")
    os.chmod(keys, 0o600)
    check_hidden_states(golden)
    check_embeddings(demo)
    check_file(demo, folder)
    check_ranking(golden)
    with Server(demo, "--parallel", "4", "--api-key-file", keys) as server:
        asyncio.run(check_fairness(server))
    check_gaps(demo, folder)
    with Server(demo, "--parallel", "3", "--api-key-file", keys) as server:
        asyncio.run(check_slots(server))
    check_ollama(demo)
    check_tokenizer(demo)
    check_progress(demo)
    check_reasoning(golden)


main()
