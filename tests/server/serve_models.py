"""Several models behind one server, of which the memory holds two: none of many requests is lost, each is answered as by a server of
that model alone, and the memory stays under the limit.

    serve_models.py FOLDER OTHER [--requests 200]

FOLDER has demo-q8_0.gguf, demo-q4_0.gguf, demo-q4_1.gguf and broken.gguf; it is changed. OTHER is a model that comes later. QN_BIN names
the folder of quern.
"""
import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

from serve_load import CHAT, MESSAGES, RESPONSES, TEXT, without_changing
from serve_process import LIMIT, SANITIZED, Connection, Server, ask, ask_once, events_of

NAMES = ["demo-q8_0", "demo-q4_0", "demo-q4_1"]
USER = [{"role": "user", "content": "Tell me about a fox and a lantern."}]
ASK_ONE = {"prompt": "Once", "max_tokens": 4}
OPTIONS = ["-c", "512", "-t", "2"]
BODIES = [
    (TEXT, {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}),
    (TEXT, {"prompt": "The red ball", "max_tokens": 8, "temperature": 0.9, "seed": 3, "n": 2}),
    (CHAT, {"messages": USER, "max_tokens": 10, "temperature": 0}),
    (MESSAGES, {"messages": USER, "max_tokens": 8, "temperature": 0}),
    (RESPONSES, {"input": "A fox", "max_output_tokens": 8, "temperature": 0}),
    ("/tokenize", {"content": "It was raining, and"}),
]


def draw(rng):
    path, body = rng.choice(BODIES)
    return path, {**body, "stream": rng.random() < 0.5} if path != "/tokenize" else body


def key_of(name, path, body):
    return name, path, json.dumps(body, sort_keys=True)


def state_of(server):
    models = json.loads(ask(server.port, "GET", "/v1/models")[2])["data"]
    return {model["id"]: model["status"] for model in models}


def answers_alone(folder):
    """What each model answers by itself, to each body."""
    answers = {}
    for name in NAMES:
        with Server(os.path.join(folder, name + ".gguf"), *OPTIONS) as server:
            for path, body in BODIES:
                for body in [body] if path == "/tokenize" else [{**body, "stream": stream} for stream in (False, True)]:
                    status, _, found = ask(server.port, "POST", path, {**body, "model": name})
                    assert status == 200, found
                    answers[key_of(name, path, body)] = without_changing(found)
    assert len({answer for (_, path, _), answer in answers.items() if path == CHAT}) == 2 * len(NAMES)  # else nothing is tested
    return answers


class Crowd:
    def __init__(self, server, answers, n):
        self.server, self.answers, self.n = server, answers, n
        self.next = self.n_answered = self.n_cancelled = 0
        self.resident = self.counted = self.n_loaded = 0

    def measure(self):
        self.resident = max(self.resident, self.server.resident())

    async def answer(self, connection, rng):
        name = rng.choice(NAMES)
        path, body = draw(rng)
        if rng.random() < 0.05:
            await connection.send("POST", path, {**body, "model": name})
            await asyncio.sleep(rng.random() * 0.05)
            connection.close()
            self.n_cancelled += 1
            return
        status, _, found = await connection.ask("POST", path, {**body, "model": name})
        assert status == 200, (name, path, status, found)
        expected = self.answers[key_of(name, path, body)]
        assert without_changing(found) == expected, f"{name} {path} {body}:\n{found}\nalone:\n{expected}"
        self.n_answered += 1

    async def work(self):
        connection = Connection(self.server.port)
        while self.next < self.n:
            number, self.next = self.next, self.next + 1
            await asyncio.wait_for(self.answer(connection, random.Random(number)), LIMIT)
            self.measure()
        connection.close()

    async def watch(self):
        connection = Connection(self.server.port)
        while self.next < self.n:
            text = (await connection.ask("GET", "/metrics"))[2].decode()
            self.counted = max(self.counted, sum(float(n) for n in re.findall(r"quern_model_memory_bytes\{[^}]*\} (\S+)", text)))
            self.n_loaded = max(self.n_loaded, sum(int(n) for n in re.findall(r"quern_model_loaded\{[^}]*\} (\d)", text)))
            await asyncio.sleep(0.02)
        connection.close()

    async def run(self):
        await asyncio.gather(self.watch(), *(self.work() for _ in range(8)))


def check_crowd(server, answers, n, limit):
    crowd = Crowd(server, answers, n)
    asyncio.run(crowd.run())
    server.wait_idle()
    loads = sum(value for name, value in server.metrics().items() if name.startswith("quern_model_loads_total"))
    print(f"{crowd.n_answered} answered, {crowd.n_cancelled} cancelled, {loads:.0f} loads, {crowd.n_loaded} at a time, counted "
          f"{crowd.counted / 2**20:.1f} MiB, resident {crowd.resident / 2**20:.1f} MiB, limit {limit / 2**20:.1f} MiB")
    assert crowd.n_answered + crowd.n_cancelled == n and crowd.n_loaded == 2 and loads > 3
    assert crowd.counted <= limit
    assert SANITIZED or crowd.resident <= limit, "the process has more memory than the limit"


def check_metrics(server):
    """Before any model was asked for."""
    metrics = server.metrics()
    for name in NAMES:
        assert metrics[f'vllm:num_requests_waiting{{model_name="{name}"}}'] == metrics[f'vllm:num_requests_running{{model_name="{name}"}}'] == 0
    assert metrics['vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""}'] == 1


def check_names(server, folder, other):
    states = state_of(server)
    assert sorted(states) == sorted([*NAMES, "broken"]), states
    assert sum(states[name]["value"] == "loaded" for name in NAMES) == 2, states
    for path, body in BODIES:
        status, _, found = ask(server.port, "POST", path, {**body, "model": "demo"})
        assert status == 404 and b"there is no model 'demo'" in found, found
    loaded = next(name for name in NAMES if states[name]["value"] == "loaded")
    assert json.loads(ask(server.port, "GET", f"/props?model={loaded}")[2])["model_alias"] == loaded
    assert ask(server.port, "GET", "/props?model=demo")[0] == 404
    assert ask(server.port, "GET", f"/v1/models/{loaded}")[0] == 200


def check_files(server, folder, other, answers):
    def complete(name, status):
        found = ask(server.port, "POST", TEXT, {"model": name, "prompt": "Once", "max_tokens": 4})
        assert found[0] == status, found
        return found[2]

    def wait_status(name, status):
        """The folder is looked at once a second."""
        end = time.monotonic() + LIMIT
        while (found := ask(server.port, "POST", TEXT, {"model": name, "prompt": "Once", "max_tokens": 4}))[0] != status:
            assert time.monotonic() < end, found
            time.sleep(0.05)

    loaded = {name: state for name, state in state_of(server).items() if state["value"] == "loaded"}
    for _ in range(2):
        status, headers, found = ask(server.port, "POST", TEXT, {"model": "broken", "prompt": "Once", "max_tokens": 4})
        assert status == 503 and 2 <= int(headers["retry-after"]) <= 10, (status, headers)
        assert b"model_unavailable" in found and b"'broken' cannot be loaded: its file" in found and folder.encode() not in found, found
    assert loaded == {name: state for name, state in state_of(server).items() if state["value"] == "loaded"}, "a broken file cost a model its memory"
    assert state_of(server)["broken"] == {"value": "unloaded", "failed": True}
    assert ask(server.port, "GET", "/health")[0] == 200
    shutil.copy(other, os.path.join(folder, "later.gguf"))
    wait_status("later", 200)
    shutil.copy(other, os.path.join(folder, "new.gguf"))
    os.rename(os.path.join(folder, "new.gguf"), os.path.join(folder, "broken.gguf"))
    server.process.send_signal(signal.SIGHUP)
    wait_status("broken", 200)  # it was mended
    gone = next(name for name, state in state_of(server).items() if state["value"] == "unloaded")
    os.remove(os.path.join(folder, gone + ".gguf"))
    complete(gone, 404)
    assert gone not in state_of(server)
    shutil.copy(other, os.path.join(folder, "last.gguf"))
    end = time.monotonic() + LIMIT
    while "last" not in state_of(server):  # which has the folder looked at
        assert time.monotonic() < end
        time.sleep(0.05)


def check_long_wait(folder):
    """A stream that waits for its model gets comments; what fails then fails in it."""
    with Server(None, "--models-dir", folder, "--models-max", "1", "--models-stay", "0", "-c", "2048", "-t", "1") as server:
        async def run():
            first, second, third = (Connection(server.port) for _ in range(3))
            long = {"model": "demo-q8_0", "prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "n": 64, "stream": True}
            await first.send("POST", TEXT, long)
            await first.reader.readuntil(b"data: ")
            streams = [second.ask("POST", RESPONSES, {"model": "demo-q4_0", "input": "a", "max_output_tokens": 4, "stream": True}),
                       third.ask("POST", TEXT, {"model": "broken2", "prompt": "a", "max_tokens": 4, "stream": True})]
            streams = [asyncio.ensure_future(stream) for stream in streams]
            await asyncio.sleep(13)  # comments begin after 10
            first.close()
            return [body for _, _, body in await asyncio.gather(*streams)]

        shutil.copy(os.path.join(folder, "demo-q4_0.gguf"), os.path.join(folder, "broken2.gguf"))
        os.truncate(os.path.join(folder, "broken2.gguf"), 100000)
        begin = time.monotonic()
        good, bad = asyncio.run(run())
        print(f"waited for {time.monotonic() - begin:.1f} s")
        assert good.startswith(b":") and b"event: response.created" in good and b"event: response.failed" not in good, good
        assert bad.startswith(b":") and b"model_unavailable" in bad, bad


def check_swap(folder):
    """A client's queue of one model does not keep another client's request for another model waiting: what has not begun waits again, and
    is answered as if it had not."""
    many, one = ({"Authorization": f"Bearer {key}"} for key in ("many-key-1", "one-key-2"))
    most = 12 if SANITIZED else 100
    body = {"prompt": "Once", "max_tokens": most, "ignore_eos": True, "temperature": 0}
    chat = {"messages": USER, "max_tokens": most, "ignore_eos": True, "temperature": 0, "stream": True}
    kinds = [(TEXT, body), (TEXT, {**body, "stream": True, "n": 2}), (CHAT, chat), (RESPONSES, {"input": "A fox", "max_output_tokens": most, "temperature": 0, "stream": True}),
             (MESSAGES, chat)]
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("many: many-key-1\none: one-key-2\n")
        keys.flush()
        with Server(None, "--models-dir", folder, "--models-max", "1", "--models-stay", "0", "-c", "512", "-t", "1", "--parallel", "2",
                    "--api-key-file", keys.name) as server:
            expected = [without_changing(ask(server.port, "POST", path, {**body, "model": NAMES[0]}, many)[2]) for path, body in kinds]
            ended = []

            async def answer(i):
                path, body = kinds[i % len(kinds)]
                status, _, found = await ask_once(server.port, "POST", path, {**body, "model": NAMES[0]}, many)
                ended.append(i)
                assert status == 200 and without_changing(found) == expected[i % len(kinds)], (path, status, found)

            async def run():
                tasks = [asyncio.ensure_future(answer(i)) for i in range(30)]
                while not ended:
                    await asyncio.sleep(0.01)
                for _ in range(2):
                    status, _, found = await ask_once(server.port, "POST", TEXT, {**ASK_ONE, "model": NAMES[1]}, one)
                    assert status == 200, found
                n = len(ended)
                await asyncio.gather(*tasks)
                return n

            n = asyncio.run(run())
            print(f"{n} of 30 answers before those of another model")
            assert n < 20


def check_unread_notes(folder):
    """Nobody reads standard error, and its pipe is full: models are loaded and freed all the same. The notes that are lost are counted."""
    out, into = os.pipe()
    os.set_blocking(out, False)
    with Server(None, "--models-dir", folder, "--models-max", "1", "--models-stay", "0", *OPTIONS, stderr=into) as server:
        fill = subprocess.Popen(["sh", "-c", "timeout 1 cat /dev/zero"], stdout=into)  # it waits, and is ended
        fill.wait()

        def ask_in_turn():
            for name in NAMES[:2]:
                assert ask(server.port, "POST", TEXT, {"model": name, "prompt": "Once", "max_tokens": 4})[0] == 200

        ask_in_turn()
        with contextlib.suppress(BlockingIOError):
            while os.read(out, 1 << 16):
                pass
        ask_in_turn()
        text = os.read(out, 1 << 16).decode()
        assert re.search(r"quern: note: [1-9]\d* notes were lost, as nobody read them\nquern: note: \S+ is", text), text
        assert re.search(r'"lost":[1-9]', text), text
    os.close(into)
    os.close(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("other")
    parser.add_argument("--requests", type=int, default=200)
    args = parser.parse_args()
    sizes = sorted(os.path.getsize(os.path.join(args.folder, name + ".gguf")) for name in NAMES)
    limit = (sizes[-1] + sizes[-2]) * 33 // 32 + (58 << 20)  # and what contexts and programs need; a third model does not fit
    begin = time.monotonic()
    answers = answers_alone(args.folder)
    check_unread_notes(args.folder)
    check_swap(args.folder)
    with Server(None, "--models-dir", args.folder, "--memory", str(limit), "--models-stay", "0", *OPTIONS) as server:
        check_metrics(server)
        check_crowd(server, answers, args.requests, limit)
        check_names(server, args.folder, args.other)
        check_files(server, args.folder, args.other, answers)
    if os.environ.get("QN_SOAK"):
        check_long_wait(args.folder)
    print(f"{time.monotonic() - begin:.1f} s")


main()
