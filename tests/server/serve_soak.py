"""Twelve clients of several models, of which two fit, while keys, certificates, the models' folder and the access log are read again: over TCP,
then by TLS. Each answer is the one that its request had before, or a refusal that the moment explains; none is lost.

    serve_soak.py FOLDER [--seconds 8]

FOLDER has parrot.gguf, caller.gguf and agent.gguf; it is changed. QN_BIN names the folder of quern.
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
import ssl
import subprocess
import time

from serve_load import CHAT, MALFORMED, MESSAGES, RESPONSES, TEXT, without_changing
from serve_process import LIMIT, Connection, Server, ask_once

CLIENTS = 12
NAMES = ["parrot", "caller", "agent"]
USER = [{"role": "user", "content": "Tell me about a fox and a lantern."}]
BODIES = [
    (TEXT, {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}),
    (TEXT, {"prompt": "The red ball", "max_tokens": 6, "temperature": 0.9, "seed": 3, "n": 3, "logprobs": 2}),
    (TEXT, {"prompt": ["A", "B"], "max_tokens": 3, "temperature": 0, "echo": True, "stop": ["."]}),
    (CHAT, {"messages": USER, "max_tokens": 10, "temperature": 0}),
    (CHAT, {"messages": USER, "max_tokens": 12, "temperature": 0, "response_format": {"type": "json_object"}}),
    (MESSAGES, {"messages": USER, "max_tokens": 8, "temperature": 0}),
    (RESPONSES, {"input": "A fox", "max_output_tokens": 8, "temperature": 0}),
    ("/completion", {"prompt": "Once", "n_predict": 4, "temperature": 0, "n_cmpl": 2}),
    ("/tokenize", {"content": "It was raining, and"}),
    ("/apply-template", {"messages": USER}),
]
# Of /completion answers have times and seeds, and are not compared.
WHOLE = ("/tokenize", "/apply-template")  # no streams
KEYS = ["sk-always", "sk-sometimes", "sk-never"]


class Soak:
    def __init__(self, server, folder, seconds):
        self.server, self.folder, self.end = server, folder, time.monotonic() + seconds
        self.answers = {}
        self.counts = {"answered": 0, "refused": 0, "cut": 0, "401": 0, "404": 0, "reloads": 0}

    def connection(self):
        return Connection(self.server.port, context=self.server.context)

    def is_on(self):
        return time.monotonic() < self.end

    def some_model(self, rng):
        """One of two for a second; now and then any, which has one of them freed."""
        first = int(time.monotonic()) % len(NAMES)
        return rng.choice(NAMES) if rng.random() < 0.05 else NAMES[(first + rng.randrange(2)) % len(NAMES)]

    async def answer(self, connection, rng):
        path, body = rng.choice(BODIES)
        key = rng.choice(KEYS[:1] * 8 + KEYS)
        name = "comes-and-goes" if rng.random() < 0.04 else self.some_model(rng)
        body = {**body, "model": name}
        if path not in WHOLE:
            body["stream"] = rng.random() < 0.5
        status, _, found = await connection.ask("POST", path, body, {"Authorization": f"Bearer {key}"})
        if status == 200:
            assert key != KEYS[2], found
            found, known = without_ids(found), (path, json.dumps(body, sort_keys=True))
            expected = self.answers.setdefault(known, found)
            assert name == "comes-and-goes" or path == "/completion" or found == expected, f"{known}:\n{found}\nbefore:\n{expected}"
            self.counts["answered"] += 1
        elif status == 401:
            assert key != KEYS[0], found
            self.counts["401"] += 1
        else:  # its file is gone, is being written, or is no model
            assert name == "comes-and-goes" and status in (404, 503), (status, name, path, found)
            self.counts["404"] += 1

    async def refuse(self, connection, rng):
        body, headers, path, expected = rng.choice(MALFORMED)
        if isinstance(body, dict) and path != "/v1/embeddings":
            body = {**body, "model": NAMES[0]}
        status, _, found = await connection.ask("POST", path, body, {**headers, "X-Api-Key": KEYS[0]})
        assert status == expected and json.loads(found)["error"]["message"], (status, expected, body, found)
        self.counts["refused"] += 1

    async def cut(self, rng):
        """A client that goes: in the head, in the body, while it waits, in the stream."""
        connection = self.connection()
        path, body = rng.choice(BODIES)
        data = json.dumps({**body, "model": self.some_model(rng), "stream": path not in WHOLE, **({"n_predict": 300} if path == TEXT else {})}).encode()
        with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.TimeoutError):
            await connection.open()
            text = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS[0]}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(data)}\r\n\r\n").encode() + data
            connection.writer.write(text[:rng.choice([rng.randrange(len(text)), len(text), len(text)])])
            await connection.writer.drain()
            if rng.random() < 0.5:
                await asyncio.wait_for(connection.reader.read(rng.randint(1, 2000)), rng.random() * 0.3)
            else:
                await asyncio.sleep(rng.random() * 0.1)
        connection.close()
        self.counts["cut"] += 1

    async def look(self, connection, rng):
        path = rng.choice(["/v1/models", "/metrics", "/health", "/props", "/", f"/v1/models/{rng.choice(NAMES)}", "/v1/models/none"])
        status, _, _ = await connection.ask("GET", path, None, {"X-Api-Key": KEYS[0]})
        assert status in (200, 404, 503) and (status == 200 or path in ("/props", "/v1/models/none")), (path, status)

    async def work(self, number):
        rng, connection = random.Random(number), self.connection()
        while self.is_on():
            draw = rng.random()
            if draw < 0.1:
                connection.close()
            step = self.cut(rng) if draw < 0.25 else self.refuse(connection, rng) if draw < 0.32 else \
                self.look(connection, rng) if draw < 0.45 else self.answer(connection, rng)
            await asyncio.wait_for(step, 2 * LIMIT)
        connection.close()

    async def reload(self):
        rng, step = random.Random(7), 0
        later = os.path.join(self.folder, "comes-and-goes.gguf")
        while self.is_on():
            step += 1
            write_keys(self.folder, KEYS[:1 + rng.randrange(2)])
            if rng.random() < 0.3:
                with open(os.path.join(self.folder, "keys"), "w") as file:
                    file.write("not a key, as it has spaces\n")
            with contextlib.suppress(FileNotFoundError):
                os.remove(later)
            if step % 3:
                shutil.copy(os.path.join(self.folder, rng.choice(NAMES) + ".gguf"), later + ".part")
                if rng.random() < 0.3:
                    os.truncate(later + ".part", rng.randrange(60000))
                os.rename(later + ".part", later)
            if self.server.context and step % 4 == 0:
                make_certificate(self.folder)
            log = os.path.join(self.folder, "log")
            if os.path.exists(log):
                os.replace(log, log + ".1")
            self.server.process.send_signal(signal.SIGHUP)
            self.counts["reloads"] += 1
            await asyncio.sleep(0.05 + rng.random() * 0.3)

    async def run(self):
        await asyncio.gather(self.reload(), *(self.work(number) for number in range(CLIENTS)))
        await self.wait_idle()

    async def wait_idle(self):
        write_keys(self.folder, KEYS[:1])
        self.server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + LIMIT
        while True:
            status, _, text = await ask_once(self.server.port, "GET", "/metrics", headers={"X-Api-Key": KEYS[0]}, context=self.server.context)
            lines = [line for line in text.decode().splitlines() if line.startswith(("quern_requests_running", "quern_requests_waiting"))]
            if status == 200 and lines and all(float(line.rsplit(" ", 1)[1]) == 0 for line in lines):
                return
            assert time.monotonic() < end, (status, lines)
            await asyncio.sleep(0.1)


def without_ids(found):
    return re.sub(rb'\b(rs|call|fc|toolu|msg)_[0-9]+_[0-9a-f]{32}', b"id", without_changing(found))


def write_keys(folder, keys):
    path = os.path.join(folder, "keys")
    with open(path + ".part", "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write("".join(f"{f'name{i}' if i else 'metrics'}: {key}\n" for i, key in enumerate(keys)))
    os.rename(path + ".part", path)


def make_certificate(folder):
    """Key and certificate do not change at one moment: the server may find a pair that is none, and keeps the one it has."""
    files = [os.path.join(folder, name) for name in ("key.pem", "cert.pem")]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", files[0] + ".part", "-out",
                    files[1] + ".part", "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
    for file in files:
        os.rename(file + ".part", file)


def run(folder, seconds, context, *options):
    write_keys(folder, KEYS[:1])
    with Server(None, "--models-dir", folder, "--models-max", "2", "-c", "1024", "-t", "2", "--api-key-file", os.path.join(folder, "keys"),
                "--access-log", os.path.join(folder, "log"), *options, context=context) as server:
        soak = Soak(server, folder, seconds)
        asyncio.run(soak.run())
        print(f"{'TLS' if context else 'TCP'}: {soak.counts}")
        assert all(soak.counts[name] for name in ("answered", "refused", "cut", "reloads")), soak.counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    make_certificate(args.folder)
    run(args.folder, args.seconds / 2, None)
    run(args.folder, args.seconds / 2, context, "--tls-cert", os.path.join(args.folder, "cert.pem"), "--tls-key", os.path.join(args.folder, "key.pem"))


if __name__ == "__main__":
    main()
