"""Attacks on quern serve from another loopback address: each is refused as docs/server.md says, and others are served meanwhile within
twice their time.

    serve_attacks.py MODEL [--idle 500]

QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import statistics
import tempfile
import time

from serve_process import LIMIT, SANITIZED, Connection, Server, ask, ask_once

ATTACKER = "127.0.0.2"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HEADER_SECONDS, BODY_SECONDS, MAX_CONNECTIONS = 2, 3, 128
ASK = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


# ---- What is refused at once ----


async def raw(port, data, shut=False):
    """The status of what the server answers to bytes, 0 if it only closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ATTACKER, 0))
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            if shut:
                writer.write_eof()
        line = b""
        with contextlib.suppress(ConnectionError):
            line = await asyncio.wait_for(reader.readline(), LIMIT)
        return int(line.split()[1]) if line else 0
    finally:
        writer.transport.abort()


def check_refusals(port):
    body = json.dumps(ASK).encode()
    length = f"Content-Length: {len(body)}\r\n".encode()
    post, host, kind = b"POST /v1/completions HTTP/1.1\r\n", b"Host: localhost\r\n", b"Content-Type: application/json\r\n"
    cases = [  # name, bytes, statuses that may be
        ("Host", b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", {403}),
        ("Host of a rebound name", b"GET /v1/models HTTP/1.1\r\nHost: localhost.evil.example:8080\r\n\r\n", {403}),
        ("no Host", b"GET /v1/models HTTP/1.1\r\n\r\n", {400}),
        ("empty Host", b"GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n", {400, 403}),
        ("two Hosts", b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", {400, 403}),
        ("HTTP/1.0 without Host", b"GET /v1/models HTTP/1.0\r\n\r\n", {403}),
        ("Origin", b"GET /v1/models HTTP/1.1\r\n" + host + b"Origin: http://evil.example\r\n\r\n", {403}),
        ("null Origin", post + host + kind + length + b"Origin: null\r\n\r\n" + body, {403}),
        ("Origin of a preflight", b"OPTIONS /v1/completions HTTP/1.1\r\n" + host + b"Origin: http://evil.example\r\n\r\n", {403}),
        ("text/plain", post + host + length + b"Content-Type: text/plain\r\n\r\n" + body, {415}),
        ("no type", post + host + length + b"\r\n" + body, {200}),
        ("no type from a page", post + host + length + b"Origin: http://localhost:1\r\n\r\n" + body, {403, 415}),
        ("a form", post + host + length + b"Content-Type: application/x-www-form-urlencoded\r\n\r\n" + body, {415}),
        ("two lengths", post + host + kind + length + b"Content-Length: 1\r\n\r\n" + body, {400}),
        ("a length and chunks", post + host + kind + length + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
        ("a length that is no number", post + host + kind + b"Content-Length: -5\r\n\r\n", {400, 413}),
        ("a length beyond all", post + host + kind + b"Content-Length: 99999999999999999999\r\n\r\n", {400, 413}),
        ("a body too large", post + host + kind + b"Content-Length: 2000000\r\n\r\n" + b" " * 2000000, {413}),
        ("a body much too large", post + host + kind + b"Content-Length: 2000000000\r\n\r\n", {413}),
        ("one that asks first", post + host + kind + b"Content-Length: 2000000\r\nExpect: 100-continue\r\n\r\n", {413}),
        ("chunks too large", post + host + kind + b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 31 + b"0\r\n\r\n", {413}),
        ("a chunk beyond all", post + host + kind + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", {0, 400, 413}),
        ("a header too large", b"GET /v1/models HTTP/1.1\r\n" + host + b"X: " + b"a" * 300000 + b"\r\n\r\n", {0, 431}),
        ("headers too many", b"GET /v1/models HTTP/1.1\r\n" + host + b"X: a\r\n" * 50000 + b"\r\n", {0, 431}),
        ("a path too long", b"GET /" + b"a" * 300000 + b" HTTP/1.1\r\n" + host + b"\r\n", {0, 404, 414, 400}),
        ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {0, 400}),
        ("no method", b" / HTTP/1.1\r\n" + host + b"\r\n", {0, 400}),
        ("an end in the middle", post + host + kind + length + b"\r\n" + body[:5], {0, 400}),
    ]
    for path in (b"/../etc/passwd", b"/v1/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"/v1/models/..%2f..%2fx", b"/v1/models/%00",
                 b"//etc/passwd", b"/v1//models", b"/v1/models/%ff", b"/v1/models/%", b"/..\\x", b"/%0d%0aX:%20y", b"/.git/config", b"*",
                 b"http://evil.example/v1/models"):
        cases.append((f"path {path.decode()}", b"GET " + path + b" HTTP/1.1\r\n" + host + b"\r\n", {400, 403, 404}))
    for name, data, expected in cases:
        status = asyncio.run(raw(port, data, shut=name == "an end in the middle"))
        assert status in expected, f"{name}: status {status}, expected one of {expected}"
    for name, sent in (("deep JSON", b"[" * 100000), ("a deep object", b'{"a":' * 50000), ("deep in the middle", b'{"prompt":' + b"[" * 1000 + b"]" * 1000 + b"}"),
                       ("invalid UTF-8", b'{"prompt": "\xff\xfe"}'), ("an overlong form", b'{"prompt": "\xc0\xaf"}'), ("a zero", b'{"prompt": "a"}\0'),
                       ("a number beyond all", b'{"prompt": "a", "max_tokens": 1e999}'), ("a long prompt", b'{"prompt": "' + b"a " * 400000 + b'"}'),
                       ("an integer of many digits", b'{"prompt": "a", "seed": ' + b"9" * 100000 + b"}"),
                       ("many stop strings", json.dumps({**ASK, "stop": ["a"] * 10000}).encode()), ("n", json.dumps({**ASK, "n": 10**9}).encode()),
                       ("many prompts", json.dumps({**ASK, "prompt": ["a"] * 10000}).encode()),
                       ("a pattern", json.dumps({"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_schema", "json_schema": {
                           "name": "a", "strict": True, "schema": {"type": "string", "pattern": "(" * 5000}}}}).encode()),
                       ("many messages", json.dumps({"messages": [{"role": "user", "content": "a"}] * 20000}).encode())):
        path = CHAT if b"messages" in sent else TEXT
        status, headers, found = ask(port, "POST", path, sent, source=ATTACKER)
        assert status == 400 and json.loads(found)["error"]["message"] and len(found) < 2000, (name, status, found[:500])
        assert headers["x-request-id"], headers
    for method, path, expected in (("PUT", TEXT, 405), ("GET", TEXT, 405), ("POST", "/health", 405), ("TRACE", "/health", 405), ("DELETE", "/v1/models", 405)):
        status, headers, _ = ask(port, method, path, ASK if method in ("PUT", "POST") else None, source=ATTACKER)
        assert status == expected and headers["allow"], (method, path, status, headers)


# ---- What lasts, while others are served ----


async def times_of(port, n):
    seconds = []
    for _ in range(n):
        begin = time.monotonic()
        status, _, found = await ask_once(port, "POST", TEXT, ASK)
        assert status == 200, found
        seconds.append(time.monotonic() - begin)
    return statistics.median(seconds)


async def open_some(port, n):
    pairs = []
    for _ in range(n):
        with contextlib.suppress(ConnectionError):
            pairs.append(await asyncio.open_connection("127.0.0.1", port, local_addr=(ATTACKER, 0)))
    return pairs


def close_all(pairs):
    for _, writer in pairs:
        writer.transport.abort()


async def wait_closed(pairs, seconds):
    """How many the server has closed in this time."""
    async def closed(reader):
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        return True

    done, pending = await asyncio.wait([asyncio.ensure_future(closed(reader)) for reader, _ in pairs], timeout=seconds)
    for task in pending:
        task.cancel()
    return len(done)


async def drip(pairs, head, piece, period):
    """A head, and then a piece in every period."""
    for _, writer in pairs:
        writer.write(head)
    while True:
        await asyncio.sleep(period)
        for _, writer in pairs:
            if not writer.transport.is_closing():
                writer.write(piece)


async def slow_headers(port):
    pairs = await open_some(port, 60)
    task = asyncio.ensure_future(drip(pairs, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", b"X: a\r\n", 0.1))
    yield
    closed = await wait_closed(pairs, HEADER_SECONDS + 3)
    task.cancel()
    close_all(pairs)
    assert closed == 60, f"{60 - closed} of 60 slow headers are still waited for"


async def slow_bodies(port):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n"
    pairs = await open_some(port, 60)
    task = asyncio.ensure_future(drip(pairs, head, b" ", 0.1))
    yield
    closed = await wait_closed(pairs, BODY_SECONDS + 3)
    task.cancel()
    close_all(pairs)
    assert closed == 60, f"{60 - closed} of 60 slow bodies are still waited for"


async def half_open(port):
    pairs = await open_some(port, 60)
    for index, (_, writer) in enumerate(pairs):
        writer.write([b"", b"G", b"POST /v1/completions HTTP/1.1\r\n"][index % 3])
        if index % 2:
            writer.write_eof()
    yield
    closed = await wait_closed(pairs, HEADER_SECONDS + 3)
    close_all(pairs)
    assert closed == 60, f"{60 - closed} of 60 half requests are still waited for"


async def flood(port, data, n):
    """Requests over and over, by n connections at a time, until the process is ended."""
    async def once():
        while True:
            with contextlib.suppress(ConnectionError):
                await raw(port, data)

    await asyncio.gather(*[once() for _ in range(n)])


def run_flood(port, data, n):
    os.nice(19)
    asyncio.run(flood(port, data, n))


async def flooded(port, data, n=4):
    """The attacker is a process of its own that takes only the time that others leave, as one on another machine takes none."""
    attacker = multiprocessing.get_context("spawn").Process(target=run_flood, args=(port, data, n), daemon=True)
    attacker.start()
    await asyncio.sleep(0.5)
    yield
    attacker.kill()
    attacker.join()


def huge_headers(port):
    return flooded(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (1 << 20))


def huge_bodies(port):
    return flooded(port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" +
                 (b"10000\r\n" + b"[" * 65536 + b"\r\n") * 24)


def deep_bodies(port):
    return flooded(port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900000\r\n\r\n" + b"[" * 900000, 2)


async def idle(port, n):
    pairs = await open_some(port, n)
    yield
    closed = await wait_closed(pairs, 0.5)
    close_all(pairs)
    assert closed >= len(pairs) - MAX_CONNECTIONS, f"{closed} of {len(pairs)} idle connections were closed, at most {MAX_CONNECTIONS} may be open"


async def unread_streams(port):
    """Clients that read nothing of long streams."""
    pairs = await open_some(port, 4)
    body = json.dumps({"prompt": "Once", "stream": True, "n": 4, "ignore_eos": True, "logprobs": 20}).encode()
    for _, writer in pairs:
        writer.transport.pause_reading()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    yield
    close_all(pairs)


async def time_under(port, attack):
    """Seconds of a request alone and under an attack. Other work on the machine may come between the two."""
    alone = await times_of(port, 9)
    await attack.__anext__()
    under = await times_of(port, 9)
    with contextlib.suppress(StopAsyncIteration):
        await attack.__anext__()
    return alone, under


async def check_attacks(port, n_idle):
    attacks = (("slow headers", slow_headers), ("slow bodies", slow_bodies), ("half open", half_open), ("huge headers", huge_headers),
               ("huge bodies", huge_bodies), ("deep bodies", deep_bodies), (f"{n_idle} idle connections", lambda port: idle(port, n_idle)))
    for name, attack in attacks:
        for _ in range(4):
            alone, under = await time_under(port, attack(port))
            if under <= 2 * alone:
                break
        print(f"{name}: {alone * 1e3:.1f} ms alone, {under * 1e3:.1f} ms under attack")
        assert under <= 2 * alone, f"{name}: {under * 1e3:.0f} ms, alone {alone * 1e3:.0f} ms"


def check_small_pieces(port):
    """Headers of single bytes in packets of their own: what has come is not looked at again with each of them."""
    pairs = [socket.create_connection(("127.0.0.1", port), source_address=(ATTACKER, 0)) for _ in range(20)]
    for connection in pairs:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        connection.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for connection in pairs:
            with contextlib.suppress(OSError):
                connection.send(b"a")
    begin = time.monotonic()
    assert ask(port, "GET", "/health")[0] == 200
    seconds = time.monotonic() - begin
    for connection in pairs:
        connection.close()
    assert seconds < (5 if SANITIZED else 1), f"{seconds:.2f} s after headers in small pieces"


async def check_unread(server):
    """Streams that nobody reads end when the client goes, and do not fill the memory."""
    before = server.resident()
    attack = unread_streams(server.port)
    await attack.__anext__()
    await asyncio.sleep(1)
    assert (await ask_once(server.port, "POST", TEXT, ASK))[0] == 200
    with contextlib.suppress(StopAsyncIteration):
        await attack.__anext__()
    assert server.resident() - before < 256 << 20


# ---- Without a key, beside a client with one ----


def open_without_end(port, data, source):
    """Connections as fast as they are taken, more than the server may have."""
    os.nice(19)
    kept = []
    while True:
        connection = socket.socket()
        kept.append(connection)
        with contextlib.suppress(OSError):
            connection.bind((source, 0))
            connection.connect(("127.0.0.1", port))
            connection.send(data)
        if len(kept) > 800:
            kept.pop(0).close()


async def send_slowly(port, key):
    """The status of a body that comes in a second, 0 if it was not answered; None if the connection was closed before the server had read
    the headers."""
    body = json.dumps({**ASK, "user": "a" * 100000}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n"
    writer = None
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT)
        assert line.startswith(b"HTTP/1.1 100"), line
    except (ConnectionError, asyncio.IncompleteReadError):
        if writer:
            writer.transport.abort()
        return None
    try:
        for at in range(0, len(body), 5000):
            writer.write(body[at:at + 5000])
            await writer.drain()
            await asyncio.sleep(0.05)
        return int((await asyncio.wait_for(reader.readline(), LIMIT)).split()[1])
    except (ConnectionError, IndexError):
        return 0
    finally:
        writer.transport.abort()


def check_places(model):
    """Strangers on this machine that take every place they get: what has shown its key is read to its end, each time."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("bob: bob-key-1\n")
        keys.flush()
        with Server(model, "-t", "1", "-c", "512", "--api-key-file", keys.name, "--max-connections", "512") as server:
            for name, data in (("connections that say nothing", b""), ("pages that nobody reads", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                               ("bodies without a key", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")):
                for source in (ATTACKER, "127.0.0.1"):
                    attacker = multiprocessing.get_context("spawn").Process(target=open_without_end, args=(server.port, data, source), daemon=True)
                    attacker.start()
                    time.sleep(1)
                    statuses = [asyncio.run(send_slowly(server.port, "bob-key-1")) for _ in range(3)]
                    attacker.kill()
                    attacker.join()
                    print(f"{name} from {source}: {statuses}")
                    assert 200 in statuses and set(statuses) <= {200, None}, f"{name} from {source}: {statuses}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--idle", type=int, default=500)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, args.idle + 2000), most))
    # One thread of two cores evaluates: the time of a step on both is that of whatever else runs on one of them.
    with Server(args.model, "-t", "1", "-c", "512", "--header-timeout", str(HEADER_SECONDS), "--body-timeout", str(BODY_SECONDS), "--max-body", "1000000",
                "--max-connections", str(MAX_CONNECTIONS)) as server:
        check_refusals(server.port)
        asyncio.run(check_attacks(server.port, args.idle))
        asyncio.run(check_unread(server))
        server.wait_idle()
    with Server(args.model, "-t", "1", "-c", "512") as server:
        check_small_pieces(server.port)
    check_places(args.model)
    print("all refused")


if __name__ == "__main__":
    main()
