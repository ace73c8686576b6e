"""Two replicas of quern serve behind HAProxy, configured by docs/haproxy.cfg.

    serve_haproxy.py MODEL CONFIGURATION [--requests 150] [--conversations 16]

Affinity: follow-up turns of conversations must find their beginning, at least 90 of 100, of fewer 80%, and both replicas must be used.
Bound: requests of one conversation, all at once, must not all go to one replica. Failures: during requests of all protocols, whole and
streamed, 20 in flight, one replica is killed and started again, then the other is stopped with SIGTERM and started again. Each request must
be answered as it is alone, but for streams that had begun on the replica that was killed. QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import collections
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from serve_load import CHAT, MESSAGES, RESPONSES, check_stream, draw_bodies, without_changing
from serve_process import LIMIT, Connection, Server, ask, ask_once

IN_FLIGHT = 20
TURNS = 3
TOGETHER = 8  # conversations
PAGE = 64  # tokens; a follow-up is evaluated from up to 63 tokens before where it differs


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Replica:
    """A server that can be started again on its port."""

    def __init__(self, model, folder, name):
        self.model, self.access, self.port = model, os.path.join(folder, f"{name}.access"), 0
        self.start()
        self.port = self.server.port

    def start(self):
        self.server = Server(self.model, "--port", str(self.port), "-c", "1024", "-t", "1", "--access-log", self.access)

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()

    def has_logged(self, identity):
        with open(self.access) as file:
            return any(json.loads(line)["id"] == identity for line in file)


class Proxy:
    """HAProxy with the configuration of the documentation; only addresses and paths are other ones."""

    def __init__(self, configuration, folder, replicas):
        self.port, self.statistics = free_port(), free_port()
        with open(configuration) as file:
            text = file.read()
        changes = {"bind :8000": f"bind 127.0.0.1:{self.port}", "bind 127.0.0.1:8405": f"bind 127.0.0.1:{self.statistics}",
                   "server one 127.0.0.1:8081": f"server one 127.0.0.1:{replicas[0].port}",
                   "server two 127.0.0.1:8082": f"server two 127.0.0.1:{replicas[1].port}",
                   "/etc/haproxy/haproxy.lua": os.path.join(os.path.dirname(configuration), "haproxy.lua"),
                   "    user haproxy\n    group haproxy\n": ""}  # whoever runs the test
        for old, new in changes.items():
            assert text.count(old) == 1, f"{configuration}: {old}"
            text = text.replace(old, new)
        path = os.path.join(folder, "haproxy.cfg")
        with open(path, "w") as file:
            file.write(text)
        self.log = open(os.path.join(folder, "haproxy.log"), "w+")
        # -dW: a warning is an error.
        self.process = subprocess.Popen([shutil.which("haproxy"), "-dW", "-db", "-f", path], stdout=self.log, stderr=self.log)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def states(self):
        """State and number of requests of each replica."""
        lines = ask(self.statistics, "GET", "/;csv")[2].decode().lstrip("# ").splitlines()
        names = lines[0].split(",")
        rows = [dict(zip(names, line.split(","))) for line in lines[1:]]
        return {row["svname"]: (row["status"], int(row["stot"])) for row in rows if row["pxname"] == "replicas" and row["svname"] != "BACKEND"}

    def counts(self):
        return [count for _, count in self.states().values()]

    def wait_until_up(self):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            assert self.process.poll() is None, self.text()
            try:
                if all(state == "UP" for state, _ in self.states().values()):
                    return
            except ConnectionRefusedError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"not all replicas are up: {self.states()}")

    def stop(self):
        self.process.terminate()
        self.process.wait(LIMIT)


# ---- Affinity ----

def first_turn(kind, number):
    """Path and body of the first request of a conversation; content in the forms of the protocols, with escapes of all kinds."""
    system, text = "You tell stories. " * 10, f"Tell me about mill {number}, \"the old one\"\nof C:\\users\\é 🤗/. " + "It has a stone. " * 12
    if kind == 0:
        return CHAT, {"max_tokens": 6, "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}
    if kind == 1:
        parts = [{"type": "text", "text": "The same for all."}, {"type": "text", "text": text}]
        return CHAT, {"max_tokens": 6, "messages": [{"role": "user", "content": parts}]}
    if kind == 2:
        return RESPONSES, {"max_output_tokens": 6, "instructions": system, "input": [{"role": "user", "content": [{"type": "input_text", "text": text}]}]}
    return MESSAGES, {"max_tokens": 6, "messages": [{"role": "user", "content": [{"type": "text", "text": text}]}],
                      "system": [{"type": "text", "text": "x-anthropic-billing-header: cch=0;"}, {"type": "text", "text": system}]}


def entries_of(body):
    return body["messages"] if "messages" in body else body["input"]


def read_answer(path, answer):
    """The model's text, tokens of the prompt, and those of them that were found."""
    usage = answer["usage"]
    if path == CHAT:
        return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
    if path == RESPONSES:
        text = "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])
        return text, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    text = "".join(part["text"] for part in answer["content"] if part["type"] == "text")
    return text, usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


async def converse(port, number, found):
    path, body = first_turn(number % 4, number)
    body["temperature"] = 0
    before, connection = 0, Connection(port)
    for turn in range(TURNS):
        if path == MESSAGES:
            body["system"][0]["text"] = f"x-anthropic-billing-header: cch={number * TURNS + turn};"
        data = json.dumps(body, ensure_ascii=number % 8 < 4).encode()
        status, _, answer = await asyncio.wait_for(connection.ask("POST", path, data, {"Content-Type": "application/json"}), 4 * LIMIT)
        assert status == 200, (status, answer)
        text, n_prompt, n_cached = read_answer(path, json.loads(answer))
        assert n_prompt >= before + PAGE, (path, n_prompt, before)
        if turn:
            found.append(n_cached >= before - (PAGE - 1))
        before = n_prompt
        entries_of(body).extend([{"role": "assistant", "content": text}, {"role": "user", "content": f"And then, in year {turn}? " + "Go on. " * 12}])
    connection.close()


async def check_affinity(proxy, n_conversations):
    begin, found, numbers = await asyncio.to_thread(proxy.counts), [], iter(range(n_conversations))

    async def work():
        for number in numbers:
            await converse(proxy.port, number, found)

    await asyncio.gather(*(work() for _ in range(TOGETHER)))
    used = [n - m for n, m in zip(await asyncio.to_thread(proxy.counts), begin)]
    print(f"affinity: {sum(found)} of {len(found)} follow-up turns of {n_conversations} conversations found their beginning; requests of the replicas: {used}")
    # Of few conversations the bound moves a larger part by chance; without affinity it is half of the turns.
    assert sum(found) >= (0.9 if len(found) >= 100 else 0.7) * len(found)
    assert min(used) >= sum(used) / 5


async def check_bound(proxy):
    begin, body = await asyncio.to_thread(proxy.counts), {"prompt": "The one that everybody asks", "max_tokens": 16, "temperature": 0}
    for _ in range(2):
        answers = await asyncio.gather(*(ask_once(proxy.port, "POST", "/v1/completions", body) for _ in range(IN_FLIGHT)))
        assert all(status == 200 for status, _, _ in answers)
    used = [n - m for n, m in zip(await asyncio.to_thread(proxy.counts), begin)]
    print(f"bound: requests of the replicas for {sum(used)} equal ones, {IN_FLIGHT} in flight: {used}")
    assert min(used) >= sum(used) / 5


# ---- Failures ----

class Failures:
    def __init__(self, proxy, replicas, n_requests):
        self.proxy, self.replicas, self.n_requests = proxy, replicas, n_requests
        self.bodies = draw_bodies(random.Random(1), 16)
        self.alone, self.broken, self.counts, self.n_begun, self.is_over = {}, [], collections.Counter(), 0, False

    async def measure_alone(self):
        connection = Connection(self.replicas[0].port)
        for index, (path, body) in enumerate(self.bodies):
            for stream in (False, True):
                status, _, found = await connection.ask("POST", path, {**body, "stream": stream})
                assert status == 200, (body, found)
                self.alone[index, stream] = without_changing(found)
        connection.close()

    async def answer(self, connection, rng):
        index, stream = rng.randrange(len(self.bodies)), rng.random() < 0.5
        path, body = self.bodies[index]
        try:
            status, _, found = await asyncio.wait_for(connection.ask("POST", path, {**body, "stream": stream}), 4 * LIMIT)
        except (asyncio.IncompleteReadError, ConnectionError):
            assert stream and connection.head and connection.head[0] == 200, f"no answer: {path} {body}, stream {stream}, {connection.head}"
            self.broken.append(connection.head[1]["x-request-id"])
            connection.close()
            return
        assert status == 200, f"{path} {body}, stream {stream}: {status} {found}"
        if stream:
            check_stream(path, found)
        assert without_changing(found) == self.alone[index, stream], f"{path} {body}, stream {stream}: {found}"
        self.counts["streamed" if stream else "whole"] += 1

    async def work(self):
        connection = Connection(self.proxy.port)
        while self.n_begun < self.n_requests or not self.is_over:
            self.n_begun += 1
            await self.answer(connection, random.Random(self.n_begun))
        connection.close()

    async def until(self, n):
        """Until so many requests were answered."""
        while sum(self.counts.values()) < n:
            await asyncio.sleep(0.01)

    async def fail(self):
        first, second = self.replicas
        await self.until(self.n_requests // 4)
        await asyncio.to_thread(first.kill)
        await self.until(sum(self.counts.values()) + IN_FLIGHT)
        await asyncio.to_thread(first.start)
        await asyncio.to_thread(self.proxy.wait_until_up)
        await self.until(self.n_requests // 2)
        await asyncio.to_thread(second.server.stop)
        await self.until(sum(self.counts.values()) + IN_FLIGHT)
        await asyncio.to_thread(second.start)
        await asyncio.to_thread(self.proxy.wait_until_up)
        await self.until(sum(self.counts.values()) + 2 * IN_FLIGHT)
        self.is_over = True

    async def run(self):
        await self.measure_alone()
        begin = time.monotonic()
        await asyncio.gather(self.fail(), *(self.work() for _ in range(IN_FLIGHT)))
        print(f"failures: {self.n_begun} requests in {time.monotonic() - begin:.1f} s, answered {dict(self.counts)}, "
              f"streams broken on the killed replica {len(self.broken)}")
        assert sum(self.counts.values()) + len(self.broken) == self.n_begun
        assert len(self.broken) <= IN_FLIGHT
        assert not any(self.replicas[1].has_logged(identity) for identity in self.broken), "a stream of the other replica was broken"
        for replica in self.replicas:
            assert await asyncio.to_thread(replica.server.metric, "quern_answers_total"), "a replica that was started again gets no requests"


async def run(proxy, replicas, args):
    await asyncio.to_thread(proxy.wait_until_up)
    for path, expected in (("/health", 200), ("/v1/models", 200), ("/metrics", 404)):
        assert (await ask_once(proxy.port, "GET", path))[0] == expected, path
    for path in ("/%6detrics", "/%6Detric%73", "/metrics?a=1", "/%6detrics?a", "/metrics#a", "/%6d%65trics%23", "//metrics", "http://localhost/metrics"):
        status, _, found = await ask_once(proxy.port, "GET", path)
        assert status in (400, 403, 404) and b"quern_" not in found, (path, status)
    long = {"prompt": "A long body", "max_tokens": 1, "metadata": {"text": "x" * 1500000}}  # beyond the proxy's buffer
    assert (await ask_once(proxy.port, "POST", "/v1/completions", long))[0] == 200
    await check_affinity(proxy, args.conversations)
    await check_bound(proxy)
    await Failures(proxy, replicas, args.requests).run()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("configuration")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--conversations", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        replicas, proxy = [], None
        try:
            replicas += [Replica(args.model, folder, name) for name in ("one", "two")]
            proxy = Proxy(args.configuration, folder, replicas)
            asyncio.run(run(proxy, replicas, args))
            for replica in replicas:
                replica.server.stop()
        except BaseException:
            print(proxy.text()[-4000:] if proxy else "")
            raise
        finally:
            if proxy:
                proxy.stop()
            for replica in replicas:
                replica.server.process.send_signal(signal.SIGKILL)


main()
