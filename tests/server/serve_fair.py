"""A key's small requests beside the large ones of another key on quern serve: they wait for a step, not for the others.

    serve_fair.py MODEL

QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time

from serve_process import LIMIT, SANITIZED, Connection, Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MANY, ONE, ALL = ({"Authorization": f"Bearer {key}"} for key in ("many-1", "one-2", "all-3"))
SMALL = {"prompt": "Once upon a time, there was a little", "max_tokens": 10, "temperature": 0, "ignore_eos": True}
# Of the small request: the step that it waits for, that of its prompt with the first token, and one for each of the others.
STEPS, MOST = 11, 1.25
# What is no step: two processes with four threads at work share two processors with the rest of a machine.
OVERHEAD = 0.03
BYTES = 64 << 20
REPEATS = 7


def chat(text, **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 400, "ignore_eos": True, **fields}


def large_requests():
    stops = [f"{i:04}" + "a" * 1020 for i in range(64)]
    return [  # name, body
        ("n 1", chat("Tell me a story.", max_tokens=2000)),
        ("n 128", chat("Tell me a story.", n=128)),
        ("n 128 with log probabilities", chat("Tell me a story.", n=128, logprobs=True, top_logprobs=20)),
        ("n 128 with 64 KB of stop strings", chat("Tell me a story.", n=128, stop=stops)),
        ("n 64 of a long conversation", chat("Once upon a time. " * 5000, n=64)),
        ("n 128, a stream", chat("Tell me a story.", n=128, stream=True)),
    ]


class Samples:
    """Seconds in steps and steps of the server, between begin and end."""

    def __init__(self, server):
        self.server = server

    async def read(self):
        connection = Connection(self.server.port)
        _, _, body = await connection.ask("GET", "/metrics", headers=ALL)
        connection.close()
        found = {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in body.decode().splitlines() if not line.startswith("#")}
        return found["quern_step_seconds_total"], found["quern_steps_total"], found["quern_requests_running"]

    async def begin(self):
        self.seconds, self.steps, _ = await self.read()

    async def end(self):
        """Seconds of a step."""
        seconds, steps, _ = await self.read()
        return (seconds - self.seconds) / max(1, steps - self.steps)


async def small_times(server, n):
    """Of requests one after the other, and what they were expected to take at most."""
    times, samples, connection = [], Samples(server), Connection(server.port)
    await samples.begin()
    for _ in range(n):
        begin = time.monotonic()
        status, _, found = await connection.ask("POST", TEXT, SMALL, ONE)
        times.append(time.monotonic() - begin)
        assert status == 200 and json.loads(found)["usage"]["completion_tokens"] == 10, found
    connection.close()
    return times, MOST * STEPS * await samples.end() + OVERHEAD


async def wait_until_running(server):
    end, samples = time.monotonic() + LIMIT, Samples(server)
    while not (await samples.read())[2]:
        assert time.monotonic() < end, "the large request does not begin"
        await asyncio.sleep(0.01)


async def beside(server, body):
    """Small requests beside a large one, also before it has begun."""
    connection = Connection(server.port)
    await connection.send("POST", CHAT, body, MANY)
    first, most_first = await small_times(server, 1)
    await wait_until_running(server)
    times, most = await small_times(server, REPEATS)
    running = (await Samples(server).read())[2]
    resident = server.resident()
    connection.close()
    end = time.monotonic() + LIMIT
    while (await Samples(server).read())[2]:
        assert time.monotonic() < end, "the large request does not end"
        await asyncio.sleep(0.05)
    assert running, "the large request has ended before the small ones"
    return first[0], most_first, times, most, resident


async def check(server, name, body):
    idle = server.resident()
    for attempt in range(2):
        first, most_first, times, most, resident = await beside(server, body)
        middle = statistics.median(times)
        print(f"{name}: {1e3 * middle:.1f} ms, at most {1e3 * most:.1f} allowed; longest {1e3 * max(times):.1f}; the first "
              f"{1e3 * first:.1f} of {1e3 * most_first:.1f}; {(resident - idle) / 2**20:.1f} MiB more", flush=True)
        if middle <= most and (resident - idle <= 4 * len(json.dumps(body)) + BYTES or SANITIZED):
            return
    raise AssertionError(f"{name}: requests of another key wait, or it takes too much memory")


async def check_queue(server):
    """A key that has filled the queue gets 429, another one is served."""
    connections = [Connection(server.port) for _ in range(6)]
    await asyncio.gather(*(c.send("POST", CHAT, chat("Tell me a story.", n=128), MANY) for c in connections))
    statuses = []

    async def receive(connection):
        statuses.append((await connection.receive())[0])

    tasks = [asyncio.ensure_future(receive(c)) for c in connections]
    end = time.monotonic() + LIMIT
    while 429 not in statuses:
        assert time.monotonic() < end, statuses
        await asyncio.sleep(0.05)
    await small_times(server, 2)
    for task in tasks:
        task.cancel()
    for connection in connections:
        connection.close()


async def check_all(server):
    await small_times(server, 3)
    for name, body in large_requests():
        await check(server, name, body)
    await check_queue(server)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "keys")
        with open(path, "w", encoding="ascii") as file:
            file.write("many: many-1\none: one-2\nmetrics: all-3\n")
        os.chmod(path, 0o600)
        with Server(model, "--api-key-file", path, "--parallel", "8", "-c", "40000") as server:
            asyncio.run(check_all(server))


if __name__ == "__main__":
    main()
