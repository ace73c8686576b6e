"""HTTP of quern serve: deadlines count from the first byte, headers have the size that the command line says, pages of another scheme are
refused, the access log tells what happened, and what was on its way at SIGTERM is answered.

    serve_http.py MODEL

QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

from serve_process import LIMIT, Connection, Server, ask, ask_once

TEXT = "/v1/completions"
HEADER_SECONDS = 2
HEADER_BYTES = 100000
ASK = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


async def status_of(reader):
    line = await asyncio.wait_for(reader.readline(), LIMIT)
    return int(line.split()[1]) if line else 0


async def seconds_until_closed(reader, writer):
    """Of a request whose first line takes most of the time that the headers may take, and whose headers have no end."""
    begin = time.monotonic()

    async def drip():
        writer.write(b"GET /hea")
        await asyncio.sleep(HEADER_SECONDS * 0.9)
        writer.write(b"lth HTTP/1.1\r\nHost: localhost\r\n")
        while not writer.transport.is_closing():
            await asyncio.sleep(0.1)
            writer.write(b"X: a\r\n")

    task = asyncio.ensure_future(drip())
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), LIMIT)
    seconds = time.monotonic() - begin
    task.cancel()
    writer.transport.abort()
    return seconds


async def check_deadlines(port):
    fresh = await asyncio.open_connection("127.0.0.1", port)
    kept = Connection(port)
    assert (await kept.ask("GET", "/health"))[0] == 200
    for seconds in await asyncio.gather(seconds_until_closed(*fresh), seconds_until_closed(kept.reader, kept.writer)):
        assert HEADER_SECONDS * 0.9 < seconds < HEADER_SECONDS * 1.8, f"headers had {seconds:.1f} s, expected {HEADER_SECONDS}"


def check_clients(port):
    for size, expected in ((HEADER_BYTES - 1000, 200), (HEADER_BYTES + 1000, 431)):
        status, _, found = ask(port, "GET", "/health", headers={"X": "a" * size})
        assert status == expected, (size, status, found[:200])
    for origin, host, expected in ((f"http://127.0.0.1:{port}", None, 200), (f"https://127.0.0.1:{port}", None, 403), ("https://box", "box", 200),
                                   ("http://box", "box", 200), ("https://box", "localhost", 403)):
        headers = {"Origin": origin, **({"Host": host} if host else {})}
        assert ask(port, "GET", "/v1/models", headers=headers)[0] == expected, (origin, host)


# Characters that would drive a terminal, reorder a line or end it, and that a path may have.
HOSTILE = ["\x80", "\x9b31m", "\x9f", "\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029", "\u202a", "\u202e", "\u2066", "\u2069", "\ufeff", "\U000e0041"]


def check_hostile_log(port, path):
    """Paths without a key, by their bytes and escaped. The log has them all, as JSON of ASCII."""
    async def send(target):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status = await status_of(reader)
        writer.transport.abort()
        return status

    for text in HOSTILE:
        for target in (f"/x{text}y".encode(), b"/x" + b"".join(b"%%%02X" % byte for byte in text.encode()) + b"y"):
            assert asyncio.run(send(target)) == 404, (text, target)
    for target in (b"/x\xff", b"/x%ff", b"/x\xc2", b"/x%1b[2J", b"/x%00", b"/x%7f"):
        assert asyncio.run(send(target)) == 400, target
    with open(path, "rb") as file:
        lines = file.read()
    assert all(byte == 10 or 32 <= byte < 127 for byte in lines), lines
    paths = [json.loads(line)["path"] for line in lines.decode().splitlines()]
    for text in HOSTILE:
        assert paths.count(f"/x{text}y") == 2, (text, paths)


class Log:
    def __init__(self, path):
        self.file = open(path)

    def line(self):
        """The next one of a completion. It comes after the answer."""
        end, text = time.monotonic() + LIMIT, ""
        while time.monotonic() < end:
            text += self.file.readline()
            if not text.endswith("\n"):
                time.sleep(0.01)
            elif (line := json.loads(text))["path"] == TEXT:
                return line
            else:
                text = ""
        raise AssertionError("the access log lacks a line")


def check_log(server, log):
    async def bad_chunk():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(POST + b"Transfer-Encoding: chunked\r\n\r\nnothing\r\n")
        status = await status_of(reader)
        await asyncio.wait_for(reader.read(), LIMIT)
        writer.transport.abort()
        return status

    async def leave():
        connection = Connection(server.port)
        await connection.send("POST", TEXT, {**ASK, "max_tokens": 400, "ignore_eos": True, "stream": True})
        await connection.reader.readuntil(b"data: ")
        connection.close()

    def count(status):
        return server.metrics().get(f'quern_http_requests_total{{route="{TEXT}",status="{status}"}}', 0)

    before = count(400)
    assert asyncio.run(bad_chunk()) == 400
    line = log.line()
    assert line["status"] == 400 and not line["cancelled"], line
    assert count(400) == before + 1
    asyncio.run(leave())
    line = log.line()
    assert line["status"] == 499 and line["cancelled"] and line["prompt_tokens"] > 0 and line["completion_tokens"] > 0, line
    usage = json.loads(ask(server.port, "POST", TEXT, {**ASK, "prompt": ["A fox", "A long red ball"], "n": 2})[2])["usage"]
    line = log.line()
    assert line["prompt_tokens"] == usage["prompt_tokens"] and line["completion_tokens"] == usage["completion_tokens"], (line, usage)
    before = server.metric("quern_request_latency_seconds_count")
    assert ask(server.port, "POST", "/tokenize", {"content": "A fox"})[0] == 200
    assert server.metric("quern_request_latency_seconds_count") == before


async def wait_refused(port):
    """Until the server accepts no connections."""
    end = time.monotonic() + LIMIT
    with contextlib.suppress(ConnectionError):
        while time.monotonic() < end:
            (await asyncio.open_connection("127.0.0.1", port))[1].transport.abort()
            await asyncio.sleep(0.02)


async def check_stop(server):
    """Bodies and headers whose rest comes after SIGTERM: those that were taken are answered, others refused."""
    body = json.dumps(ASK).encode()
    with_length = POST + f"Content-Length: {len(body)}\r\n".encode()
    pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    rests = [with_length + b"\r\n" + body, with_length + b"\r\n" + body, b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    for (_, writer), rest, size in zip(pairs, rests, (len(with_length) + 10, len(with_length) - 5, 3)):
        writer.write(rest[:size])
    assert (await ask_once(server.port, "GET", "/health"))[0] == 200  # by now they were read
    server.process.send_signal(signal.SIGTERM)
    await wait_refused(server.port)
    for (_, writer), rest, size in zip(pairs, rests, (len(with_length) + 10, len(with_length) - 5, 3)):
        writer.write(rest[size:])
    found = [await status_of(reader) for reader, _ in pairs]
    assert found == [200, 503, 200], found
    for _, writer in pairs:
        writer.transport.abort()


# Path, body, where the answer tells how many tokens of the prompt were found.
LONG = "A fox and a lantern went down to the river. " * 30
CACHED = [
    (TEXT, {"prompt": LONG}, ("usage", "prompt_tokens_details", "cached_tokens")),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "One. " + LONG}]}, ("usage", "prompt_tokens_details", "cached_tokens")),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Two! " + LONG}]}, ("usage", "cache_read_input_tokens")),
    ("/v1/responses", {"input": "Three? " + LONG}, ("usage", "input_tokens_details", "cached_tokens")),
    ("/completion", {"prompt": "Four: " + LONG}, ("timings", "cache_n")),
]


def check_scopes(model):
    """What one key's requests have evaluated is found by that key alone, whatever tells of it."""
    with Server(model, "-c", "1024", "--api-key", "one", "--api-key", "two") as server:
        for path, body, place in CACHED:
            length = {"/v1/responses": "max_output_tokens", "/completion": "n_predict"}.get(path, "max_tokens")

            def found_by(key):
                status, _, found = ask(server.port, "POST", path, {**body, length: 1, "temperature": 0}, {"Authorization": f"Bearer {key}"})
                value = json.loads(found)
                assert status == 200, found
                for name in place:
                    value = value[name]
                return value

            assert found_by("one") == 0, path
            assert found_by("one") >= 128, path
            assert found_by("two") == 0, path
            assert found_by("two") >= 128, path


def check_metrics(model):
    """What /metrics tells is of all keys: of several it is for the one of that name alone. The only one has it, and without keys all do."""
    def statuses(server, *keys):
        headers = [{"Authorization": f"Bearer {key}"} for key in keys] + [{"X-Api-Key": key} for key in keys]
        return {ask(server.port, method, path, None, header)[0] for header in headers for method in ("GET", "HEAD")
                for path in ("/metrics", "/%6detrics", "/metrics?a=1")}

    with Server(model, "-c", "512", "--api-key", "one", "--api-key", "metrics: all", "--api-key", "metrics2: two") as server:
        assert statuses(server, "one", "two") == {403}
        assert statuses(server, "all") == {200}
        assert statuses(server, "metrics", "") == {401}
        status, _, found = ask(server.port, "GET", "/metrics", None, {"X-Api-Key": "one"})
        assert (status, json.loads(found)["error"]["type"]) == (403, "permission_error"), found
        assert ask(server.port, "GET", "/v1/models", None, {"X-Api-Key": "one"})[0] == 200
    with Server(model, "-c", "512", "--api-key", "one") as server:
        assert statuses(server, "one") == {200}
        assert statuses(server, "") == {401}


def check_unwanted_bodies(model):
    """Of requests that no protocol reads, without a key or with OPTIONS, no byte is kept: of whoever is not trusted, from any address."""
    size = 16 << 20
    with Server(model, "-t", "1", "-c", "512", "--api-key", "one") as server, contextlib.ExitStack() as sockets:
        before = server.resident()
        for i, method in enumerate(["OPTIONS", "POST", "PUT", "OPTIONS", "POST", "OPTIONS"]):
            key = "X-Api-Key: one\r\n" if i == 3 else ""
            one = sockets.enter_context(socket.create_connection(("127.0.0.1", server.port), LIMIT, (f"127.0.0.{1 + i}", 0)))
            one.sendall(f"{method} /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{key}"
                        f"Content-Length: {size}\r\n\r\n".encode())
            one.sendall(b"a" * (size - 1))
        grown = server.resident() - before
        assert grown < size, f"{grown} bytes are kept of bodies that nothing reads"
        status, _, found = ask(server.port, "POST", TEXT, {**ASK, "prompt": "a" * 100}, {"Authorization": "Bearer one"})
        assert status == 200, found


def check_options(model):
    program = os.path.join(os.environ["QN_BIN"], "quern")
    found = subprocess.run([program, "serve", "-m", model, "--max-header", "257K"], capture_output=True, timeout=LIMIT)
    assert found.returncode == 2 and b"at most 262144" in found.stderr, found


def open_writer(fifo):
    """None while nobody reads it."""
    with contextlib.suppress(OSError):
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    return None


def check_stop_while_loading(model):
    """A template that does not come keeps the server from being ready."""
    with tempfile.TemporaryDirectory() as folder:
        fifo = os.path.join(folder, "template")
        os.mkfifo(fifo)
        program = os.path.join(os.environ["QN_BIN"], "quern")
        process = subprocess.Popen([program, "serve", "-m", model, "--port", "0", "--chat-template", fifo], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL)
        assert b"listening" in process.stdout.readline()
        while not (writer := open_writer(fifo)):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        os.close(writer)
        assert process.wait(LIMIT) == 0, process.returncode
        process.stdout.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "log")
        with Server(args.model, "-t", "1", "-c", "512", "--header-timeout", str(HEADER_SECONDS), "--max-header", str(HEADER_BYTES), "--drain", "20",
                    "--allowed-host", "box", "--access-log", path) as server:
            check_clients(server.port)
            asyncio.run(check_deadlines(server.port))
            check_log(server, Log(path))
            check_hostile_log(server.port, path)
            begin = time.monotonic()
            asyncio.run(check_stop(server))
            assert server.process.wait(LIMIT) == 0 and time.monotonic() - begin < 15
    check_scopes(args.model)
    check_unwanted_bodies(args.model)
    check_metrics(args.model)
    check_options(args.model)
    check_stop_while_loading(args.model)


if __name__ == "__main__":
    main()
