"""Many requests at once: each is answered or refused as it must be, and answered as it is alone, to the byte.

    serve_load.py MODEL [--requests 300] [--parallel 64]

Requests are drawn from a few bodies of all protocols, at temperature 0 or with a seed, whole and streamed. One of ten is cancelled somewhere, one of
twenty is malformed. The memory of the server must not grow over the second half. QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import json
import random
import re
import time

from serve_process import LIMIT, SANITIZED, Connection, Server, events_of

CHAT, TEXT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
WORDS = ["Once upon a time", "The red ball", "A fox and a lantern", "Zoë and 🤗", "It was raining, and", "The old miller said:"]

# Body, headers, path, status.
MALFORMED = [
    (b'{"prompt": "a"', {}, TEXT, 400),
    (b"", {}, TEXT, 400),
    (b"[1, 2]", {}, CHAT, 400),
    (b'{"prompt": "\xff\xfe"}', {}, TEXT, 400),
    ({"prompt": 7}, {}, TEXT, 400),
    ({"messages": []}, {}, CHAT, 400),
    ({"prompt": "a", "temperature": 3, "stream": True}, {}, TEXT, 400),
    ({"prompt": "word " * 3000, "stream": True}, {}, TEXT, 400),
    ({"prompt": "a", "grammar": "root ::= ("}, {}, TEXT, 400),
    ({"prompt": "a"}, {"Content-Type": "text/plain"}, TEXT, 415),
    ({"prompt": "a"}, {}, "/v1/nothing", 404),
    ({"prompt": "a"}, {"Host": "evil.example"}, TEXT, 403),
    ({"input": []}, {}, "/v1/embeddings", 400),
    ({"max_tokens": 5, "messages": []}, {}, MESSAGES, 400),
    ({"max_tokens": 5, "messages": [{"role": "user", "content": "word " * 3000}], "stream": True}, {}, MESSAGES, 400),
    ({"input": "a", "previous_response_id": "resp_1", "stream": True}, {}, RESPONSES, 400),
]


def draw_bodies(rng, n):
    bodies = []
    for i in range(n):
        text = f"{rng.choice(WORDS)} {i}"
        body = {"max_tokens": rng.randint(1, 24), **rng.choice([{"temperature": 0}, {"temperature": 0.9, "seed": i}])}
        if rng.random() < 0.4:
            path = rng.choice([MESSAGES, RESPONSES])
            if path == MESSAGES:
                body.update(rng.choice([{}, {"stop_sequences": ["."]}]), messages=[{"role": "user", "content": text}])
            else:
                body.update(input=text, max_output_tokens=body.pop("max_tokens"))
            bodies.append((path, body))
            continue
        body.update(rng.choice([{}, {}, {"n": 2, "seed": 9}, {"stop": ["."]}, {"frequency_penalty": 0.5}]))
        if rng.random() < 0.5:
            path, body["messages"] = CHAT, [{"role": "user", "content": text}]
            body.update(rng.choice([{}, {}, {"logprobs": True}, {"response_format": {"type": "json_object"}}]))
        else:
            path, body["prompt"] = TEXT, text
            body.update(rng.choice([{}, {}, {"logprobs": 2}, {"echo": True}]) if "logprobs" not in body else {})
        bodies.append((path, body))
    return bodies


def without_changing(body):
    """The answer without what differs from request to request: ids, time, how much of the prompt was found, what keeps a silent stream
    open, and in a stream the order of events of different choices."""
    body = re.sub(rb'"(id|item_id|created|created_at|cached_tokens|cache_read_input_tokens|input_tokens)":("[^"]*"|\d+)', rb'"\1":0', body)
    if not body.startswith((b"data: ", b"event: ", b":")):
        return body
    events = [event for event in body.split(b"\n\n") if not event.startswith((b":", b"event: ping"))]
    return b"\n\n".join(sorted(events, key=lambda event: int((re.search(rb'"choices":\[\{"index":(\d+)', event) or [0, 99])[1])))


def check_stream(path, body):
    if path in (MESSAGES, RESPONSES):
        last = body.split(b"\n\n")[-2].split(b"\n")[0]
        assert last in (b"event: message_stop", b"event: response.completed", b"event: response.incomplete"), body[-1000:]
        return
    events = events_of(body)
    assert events.pop() == "[DONE]"
    assert events and not any("error" in json.loads(event) for event in events), events


class Load:
    def __init__(self, server, args):
        self.server, self.rng, self.n = server, random.Random(args.seed), args.requests
        self.bodies = draw_bodies(self.rng, 24)
        self.alone = {}
        self.counts = {"answered": 0, "refused": 0, "cancelled": 0}
        self.resident = []
        self.next = 0

    async def measure_alone(self):
        connection = Connection(self.server.port)
        for index, (path, body) in enumerate(self.bodies):
            for stream in (False, True):
                status, _, found = await connection.ask("POST", path, {**body, "stream": stream})
                assert status == 200, (body, found)
                self.alone[index, stream] = without_changing(found)
                again = without_changing((await connection.ask("POST", path, {**body, "stream": stream}))[2])
                assert again == self.alone[index, stream], f"{body}: alone it is not the same twice:\n{found}\n{again}"
        connection.close()

    async def answer(self, connection, rng):
        index, stream = rng.randrange(len(self.bodies)), rng.random() < 0.5
        path, body = self.bodies[index]
        status, headers, found = await connection.ask("POST", path, {**body, "stream": stream})
        assert status == 200 and headers.get("x-request-id"), (status, headers, found)
        if stream:
            check_stream(path, found)
        expected = self.alone[index, stream]
        assert without_changing(found) == expected, f"{path} {body}, stream {stream}:\n{without_changing(found)}\nalone:\n{expected}"
        self.counts["answered"] += 1

    async def refuse(self, connection, rng):
        body, headers, path, expected = rng.choice(MALFORMED)
        status, _, found = await connection.ask("POST", path, body, headers)
        assert status == expected, (status, expected, body, found)
        assert json.loads(found)["error"]["message"], found
        self.counts["refused"] += 1

    async def cancel(self, rng):
        connection = Connection(self.server.port)
        path, body = self.bodies[rng.randrange(len(self.bodies))]
        length = "max_output_tokens" if path == RESPONSES else "max_tokens"
        await connection.send("POST", path, {**body, length: 400, "stream": rng.random() < 0.7})
        if rng.random() < 0.5:
            await connection.reader.read(rng.randint(1, 2000))
        else:
            await asyncio.sleep(rng.random() * 0.2)
        connection.close()
        self.counts["cancelled"] += 1

    async def work(self):
        connection = Connection(self.server.port)
        while self.next < self.n:
            number, self.next = self.next, self.next + 1
            rng = random.Random(number)
            if number % max(1, self.n // 40) == 0:
                self.resident.append(self.server.resident())
            if rng.random() < 0.3:
                connection.close()
            kind = rng.randrange(20)
            step = self.cancel(rng) if kind < 2 else self.refuse(connection, rng) if kind < 3 else self.answer(connection, rng)
            await asyncio.wait_for(step, 4 * LIMIT)  # 64 wait for each other
        connection.close()

    async def run(self, parallel):
        await self.measure_alone()
        await asyncio.gather(*(self.work() for _ in range(parallel)))

    def check_end(self):
        assert sum(self.counts.values()) == self.n
        self.server.wait_idle()
        self.resident.append(self.server.resident())
        half = self.resident[len(self.resident) // 2:]
        growth = max(half[len(half) // 2:]) - max(half[:len(half) // 2])
        print(f"{self.counts}, {min(self.resident) >> 10} to {max(self.resident) >> 10} KiB, growth {growth >> 10} KiB")
        # A sanitizer keeps what was freed. Few requests are not enough to fill caches.
        limit = (2 << 20) + max(half) // (50 if self.n >= 5000 else 10)
        assert SANITIZED or growth <= limit, f"memory grows by {growth >> 10} KiB: {[r >> 10 for r in self.resident]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with Server(args.model, "-c", "512", "--parallel", "16") as server:
        load = Load(server, args)
        begin = time.monotonic()
        asyncio.run(load.run(args.parallel))
        load.check_end()
        print(f"{args.requests} requests in {time.monotonic() - begin:.1f} s")


if __name__ == "__main__":
    main()
