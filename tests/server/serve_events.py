"""When quern serve hears of bytes and of ends: each part of a request, requests of one size one after another, many clients at once, a client
that leaves, a stream that is there when the server stops; and the page, and bench-serve as a client.

    serve_events.py MODEL

QN_BIN names the folder of quern.
"""
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

from serve_process import LIMIT, Connection, Server, ask, events_of

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
ASK = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
LONG = {"prompt": "Once upon a time", "max_tokens": 8000, "ignore_eos": True, "stream": True}


async def check_pieces(port):
    """A request that comes in pieces is answered after the last one, whether it is the first of its connection or not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        for piece in (b"GE", b"T /health HT", b"TP/1.1\r\nHost: local", b"host\r\n\r", b"\n"):
            writer.write(piece)
            await asyncio.sleep(0.03)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT)
        assert b" 200 " in head, head
        await asyncio.wait_for(reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])), LIMIT)
    writer.close()


async def check_one_size(port, n):
    """The next request has as many bytes as the last one, and comes at once."""
    connection = Connection(port)
    begin = time.monotonic()
    for _ in range(n):
        assert (await asyncio.wait_for(connection.ask("GET", "/health"), LIMIT))[0] == 200
    seconds = time.monotonic() - begin
    connection.close()
    assert seconds < 30, f"{n} requests took {seconds:.1f} s"


async def check_many(port, n):
    """All clients get the same text, streamed or not."""
    async def one(i):
        connection = Connection(port)
        streams = i % 2 == 1
        status, _, body = await asyncio.wait_for(connection.ask("POST", TEXT, {**ASK, "stream": streams}), LIMIT)
        connection.close()
        assert status == 200, body
        answers = [json.loads(event) for event in events_of(body)[:-1]] if streams else [json.loads(body)]
        return "".join(answer["choices"][0]["text"] for answer in answers if answer["choices"])

    texts = set(await asyncio.gather(*(one(i) for i in range(n))))
    assert len(texts) == 1 and texts != {""}, texts


async def leave(port):
    connection = Connection(port)
    await connection.send("POST", TEXT, LONG)
    await asyncio.wait_for(connection.reader.readuntil(b"data: "), LIMIT)
    connection.close()


def check_leave(server):
    before = server.metric("quern_generated_tokens_total")
    asyncio.run(leave(server.port))
    server.wait_idle()
    made = server.metric("quern_generated_tokens_total") - before
    assert 0 < made < LONG["max_tokens"], f"{made} tokens were generated for a client that left"


def check_chat(port):
    status, _, body = ask(port, "POST", CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True})
    assert status == 200 and events_of(body)[-1] == "[DONE]", body


def check_page(port):
    status, headers, body = ask(port, "GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html") and b"<!doctype html>" in body, headers
    status, _, body = ask(port, "GET", "/page/api.js")
    assert status == 200 and b"fetch" in body


def check_bench(server):
    program = os.path.join(os.environ["QN_BIN"], "quern")
    found = subprocess.run([program, "bench-serve", server.url, "--requests", "8", "--parallel", "4", "-p", "16", "-n", "4"], capture_output=True,
                           timeout=LIMIT)
    assert found.returncode == 0 or b"built without libcurl" in found.stderr, found


async def check_stop(server):
    """The stream that is on its way gets its end."""
    connection = Connection(server.port)
    await connection.send("POST", TEXT, {**LONG, "max_tokens": 200})
    await asyncio.wait_for(connection.reader.readuntil(b"data: "), LIMIT)
    server.process.terminate()
    rest = await asyncio.wait_for(connection.reader.read(), LIMIT)
    assert b"data: [DONE]" in rest, rest[-300:]
    connection.close()


def check_folder(model):
    with tempfile.TemporaryDirectory() as folder:
        for name in ("modèle.gguf", "a.gguf", "not-a-model.txt"):
            shutil.copy(model, os.path.join(folder, name))
        with Server(None, "--models-dir", folder, "-c", "1024", "-t", "2") as server:
            names = [model["id"] for model in json.loads(ask(server.port, "GET", "/v1/models")[2])["data"]]
            assert names == ["a", "modèle"], names
            assert ask(server.port, "POST", TEXT, {**ASK, "model": "modèle"})[0] == 200


def main():
    (model,) = sys.argv[1:]
    check_folder(model)
    with Server(model, "-c", "8192", "--parallel", "4", "-t", "2") as server:
        asyncio.run(check_pieces(server.port))
        asyncio.run(check_one_size(server.port, 100))
        asyncio.run(check_many(server.port, 12))
        check_chat(server.port)
        check_page(server.port)
        check_leave(server)
        check_bench(server)
        asyncio.run(check_stop(server))
        assert server.process.wait(LIMIT) == 0


if __name__ == "__main__":
    main()
