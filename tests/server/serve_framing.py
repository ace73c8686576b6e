"""Where requests end: bytes that servers and proxies may read in different ways are never two requests. Each case is one header block with a
body that looks like a request; it must be answered once, and then the connection must be closed, or go on with the request that follows.

    serve_framing.py MODEL

QN_BIN names the folder of quern.
"""
import argparse
import asyncio
import concurrent.futures
import contextlib
import json
import os
import re
import ssl
import subprocess
import tempfile
import time

from serve_process import LIMIT, Server

KEY = "sk-first"
AUTH = b"Authorization: Bearer " + KEY.encode() + b"\r\n"
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"
POST = b"POST /tokenize HTTP/1.1\r\n" + HOST + AUTH + JSON
GET = b"GET /health HTTP/1.1\r\n" + HOST
BODY = b'{"content": "A fox"}'
HIDDEN = b"GET /v1/models HTTP/1.1\r\n" + HOST + AUTH + b"X-Smuggled: 1\r\n\r\n"  # the only request for this path


def length(n):
    return b"Content-Length: %d\r\n" % n


# Name, header block, body that is no request. What is read as one too many shows as a request for /v1/models in the log.
BAD = [
    ("space before the colon", POST + b"Content-Length : %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("tab before the colon", POST + b"Content-Length\t: %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("space before the colon of chunks", POST + b"Transfer-Encoding : chunked\r\n\r\n", b"%x\r\n" % len(HIDDEN) + HIDDEN + b"\r\n0\r\n\r\n"),
    ("space before the name", POST + b" Content-Length: %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("space before the first name", b"POST /tokenize HTTP/1.1\r\n Content-Length: %d\r\n" % len(HIDDEN) + HOST + AUTH + JSON + b"\r\n", HIDDEN),
    ("a folded length", POST + b"Content-Length:\r\n %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("a length that is folded at its end", POST + b"Content-Length: %d\r\n 0\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("a length folded by a tab", POST + b"Content-Length: %d\r\n\tx\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("a folded header before the length", POST + b"X: a\r\n b\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("a bare CR", POST + b"X: a\rContent-Length: %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("a bare CR before the CRLF", POST + b"X: a\r\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("a bare LF", POST + b"X: a\nContent-Length: %d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("bare LFs alone", (POST + length(len(BODY)) + b"\r\n").replace(b"\r\n", b"\n"), BODY),
    ("an end of bare LFs", POST + length(len(HIDDEN))[:-2] + b"\n\n", HIDDEN),
    ("a zero in a length", POST + b"Content-Length: 2\x00%d\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("a zero after a length", POST + b"Content-Length: %d\x00\r\n\r\n" % len(HIDDEN), HIDDEN),
    ("a zero in a value", POST + b"X: a\x00b\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("a zero in a name", POST + b"X\x00Y: a\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("a zero in the target", b"GET /health\x00/../../x HTTP/1.1\r\n" + HOST + b"\r\n", HIDDEN),
    ("a zero in a key", b"GET /props HTTP/1.1\r\n" + HOST + b"Authorization: Bearer " + KEY.encode() + b"\x00x\r\n\r\n", HIDDEN),
    ("a zero in the other key", b"GET /props HTTP/1.1\r\n" + HOST + b"X-Api-Key: " + KEY.encode() + b"\x00\r\n\r\n", HIDDEN),
    ("a zero in the host", b"GET /health HTTP/1.1\r\nHost: localhost\x00.evil.example\r\n\r\n", HIDDEN),
    ("an escape in a value", POST + b"X: \x1b[2J\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("two equal lengths", POST + length(len(HIDDEN)) + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("two lengths", POST + length(len(HIDDEN)) + length(2) + b"\r\n", HIDDEN),
    ("lengths as a list", POST + b"Content-Length: %d, %d\r\n\r\n" % (len(HIDDEN), len(HIDDEN)), HIDDEN),
    ("a length and chunks", POST + length(len(HIDDEN)) + b"Transfer-Encoding: chunked\r\n\r\n", b"0\r\n\r\n" + HIDDEN),
    ("chunks and a length", POST + b"Transfer-Encoding: chunked\r\n" + length(5) + b"\r\n", b"0\r\n\r\n" + HIDDEN),
    ("two encodings", POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", b"0\r\n\r\n" + HIDDEN),
    ("encodings as a list", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"0\r\n\r\n" + HIDDEN),
    ("an encoding of another name", POST + b"Transfer-Encoding: xchunked\r\n\r\n", b"0\r\n\r\n" + HIDDEN),
    ("an encoding in quotes", POST + b'Transfer-Encoding: "chunked"\r\n\r\n', b"0\r\n\r\n" + HIDDEN),
    ("an encoding with a form feed", POST + b"Transfer-Encoding: \x0cchunked\r\n\r\n", b"0\r\n\r\n" + HIDDEN),
    ("chunks in HTTP/1.0", POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n", b"0\r\n\r\n" + HIDDEN),
    *[(f"a length of {text.decode()!r}", POST + b"Content-Length: " + text + b"\r\n\r\n", HIDDEN)
      for text in (b"", b"+5", b"-5", b"-0", b"0x5", b"5.0", b"1e1", b"5 5", b"5;", b"\xd9\xa5", b"18446744073709551615", b"18446744073709551616",
                   b"18446744073709551621", b"99999999999999999999999999", b"0" * 5000 + b"5")],
    ("no version", b"GET /health\r\n" + HOST + b"\r\n", HIDDEN),
    ("HTTP/0.9", b"GET /health HTTP/0.9\r\n" + HOST + b"\r\n", HIDDEN),
    ("HTTP/2.0", b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", HIDDEN),
    ("HTTP/1.10", b"GET /health HTTP/1.10\r\n" + HOST + b"\r\n", HIDDEN),
    ("a preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HIDDEN),
    ("a space in the target", b"GET /health HTTP/1.1 HTTP/1.1\r\n" + HOST + b"\r\n", HIDDEN),
    ("two spaces", b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", HIDDEN),
    ("a tab", b"GET\t/health HTTP/1.1\r\n" + HOST + b"\r\n", HIDDEN),
    ("a space at the end", b"GET /health HTTP/1.1 \r\n" + HOST + b"\r\n", HIDDEN),
    ("a method that is no token", b"G:T /health HTTP/1.1\r\n" + HOST + b"\r\n", HIDDEN),
    ("a header without a colon", POST + b"X\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("a header without a name", POST + b": a\r\n" + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("no host", b"GET /health HTTP/1.1\r\n\r\n", HIDDEN),
    ("two hosts", GET + b"Host: localhost\r\n\r\n", HIDDEN),
]

# Chunks: what is no part of the body must not be the next request, whether or not the request is answered.
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = [
    ("a size of a zero's prefix", b"0x14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a size with a sign", b"+14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a size with a space before", b" 14\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a size with a space after", b"14 \r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a size of no digits", b"\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a size beyond 64 bits", b"10000000000000014\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("a negative size", b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("bare LFs", b"14\n" + BODY + b"\n0\n\n"),
    ("an extension", b"14;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"),
    ("an extension with a bare LF", b"14;a\n" + BODY + b"\r\n0\r\n\r\n"),
    ("an extension with a bare CR", b"14;a\r" + BODY + b"\r\n0\r\n\r\n"),
    ("an extension that hides a chunk", b"14;\n" + BODY + b"\r\n0;\n\r\n"),
    ("a chunk without an end", b"14\r\n" + BODY + b"0\r\n\r\n"),
    ("a chunk with two bytes for its end", b"14\r\n" + BODY + b"xx0\r\n\r\n"),
    ("many zeros", b"0" * 100 + b"14\r\n" + BODY + b"\r\n" + b"0" * 100 + b"\r\n\r\n"),
    ("trailers", b"14\r\n" + BODY + b"\r\n0\r\nContent-Length: 100\r\nHost: evil.example\r\n\r\n"),
    ("a folded trailer", b"14\r\n" + BODY + b"\r\n0\r\nX: a\r\n b\r\n\r\n"),
]

# What is usual is kept open: two requests, two answers.
GOOD = [
    ("a page", GET + b"\r\n", b""),
    ("a body", POST + length(len(BODY)) + b"\r\n", BODY),
    ("no spaces after colons", POST.replace(b": ", b":") + b"Content-Length:%d\r\n\r\n" % len(BODY), BODY),
    ("spaces and tabs after colons", POST.replace(b": ", b": \t ") + length(len(BODY)) + b"\r\n", BODY),
    ("an empty value", POST + b"X:\r\n" + length(len(BODY)) + b"\r\n", BODY),
    ("a query", b"GET /v1/health?a=b&c=%20&d HTTP/1.1\r\n" + HOST + b"\r\n", b""),
    ("an empty line before", b"\r\n" + GET + b"\r\n", b""),
    ("cookies", GET + b"Cookie: a=b; c=d\r\nCookie: e=f\r\n\r\n", b""),
    ("many headers", GET + b"".join(b"X-%d: a\r\n" % i for i in range(100)) + b"\r\n", b""),
    ("other methods", b"OPTIONS /health HTTP/1.1\r\n" + HOST + b"\r\n", b""),
    ("a body that is thrown away", b"POST /nothing HTTP/1.1\r\n" + HOST + AUTH + JSON + length(len(HIDDEN)) + b"\r\n", HIDDEN),
    ("bytes that are no ASCII", GET + b"X: \xc3\xa9\xff\r\n\r\n", b""),
]


class Client:
    def __init__(self, server, context):
        self.server, self.context = server, context

    async def exchange(self, pieces, pause=0.0, silence=10):
        """All that the server sends, and whether it closed: it has so many seconds of silence for that after an answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port, ssl=self.context, server_hostname="localhost" if self.context else None)
        found = bytearray()

        async def read():
            try:
                with contextlib.suppress(ConnectionError):  # a reset is an end, too
                    while piece := await asyncio.wait_for(reader.read(1 << 16), silence if found else LIMIT):
                        found.extend(piece)
                return True
            except asyncio.TimeoutError:
                return False

        reading = asyncio.ensure_future(read())  # from the beginning: what was read before a reset counts
        try:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(pause)
            is_closed = await reading
            return bytes(found), is_closed
        finally:
            writer.transport.abort()

    def ask(self, *arguments):
        return asyncio.run(self.exchange(*arguments))

    def ask_all(self, cases, silence=10):
        """Names, pieces and pauses; sixteen at a time. Each with what came and whether it was closed."""
        async def run():
            places = asyncio.Semaphore(16)

            async def one(name, pieces, pause):
                async with places:
                    return name, *await self.exchange(pieces, pause, silence)

            return await asyncio.gather(*(one(*case) for case in cases))

        return asyncio.run(run())


def count(found):
    """How many heads of answers the server sent."""
    return found.count(b"HTTP/1.1 ")


def ways(head, body):
    """One packet, two, three with one within the head."""
    return ([head + body], 0), ([head, body], 0.02), ([head[:7], head[7:len(head) // 2], head[len(head) // 2:] + body], 0.02)


def check_bad(client):
    cases = [(name, *way) for name, head, body in BAD for way in (*ways(head, body), ([head + body + HIDDEN], 0))]
    for name, found, is_closed in client.ask_all(cases):
        assert count(found) <= 1 and b'"object":"list"' not in found, f"{name}: {found}"
        assert is_closed, f"{name}: not closed after {found}"
        if not client.context:
            assert found.startswith(b"HTTP/1.1 400 ") and b"invalid_request_error" in found, f"{name}: {found}"


def check_bad_later(client):
    """The same after a request with a body, with which libmicrohttpd may have read the beginning of the next one."""
    first = POST + length(len(BODY)) + b"\r\n" + BODY
    cases = [(name, pieces, 0.05) for name, head, body in BAD for pieces in ([first, head + body + HIDDEN], [first + head[:10], head[10:] + body])]
    for name, found, is_closed in client.ask_all(cases):
        assert found.startswith(b"HTTP/1.1 200") and b'"object":"list"' not in found and is_closed, f"{name}: {found}"


def check_chunks(client):
    cases = [(name, *way) for name, body in CHUNKS for way in (([CHUNKED + body + HIDDEN], 0), ([CHUNKED, body, HIDDEN], 0.02))]
    for name, found, is_closed in client.ask_all(cases):
        assert count(found) <= 1 and is_closed and b'"object":"list"' not in found, f"{name}: {found}"


def check_good(client):
    cases = [(name, *way) for name, head, body in GOOD for way in ways(head, body)]
    for name, found, is_closed in client.ask_all(cases, 0.5):
        assert count(found) == 1 and not is_closed, f"{name}: {found}, closed {is_closed}"

    async def one_after_another():
        reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port, ssl=client.context)
        for _ in range(20):
            for name, head, body in GOOD:
                writer.write(head + body)
                answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), LIMIT)
                size = re.search(rb"(?i)content-length: (\d+)", answer)
                await reader.readexactly(int(size[1]) if size else 0)
                assert answer.startswith(b"HTTP/1.1 "), (name, answer)
        writer.transport.abort()

    asyncio.run(one_after_another())


def check_pipeline(client):
    """Requests that come before their turn are answered in their order, or the connection is closed between two of them."""
    found, _ = client.ask([GET + b"\r\n" + GET + b"\r\n" + GET + b"\r\n"], 0, 3)
    assert count(found) == found.count(b"HTTP/1.1 200") == 3, found
    found, _ = client.ask([GET + b"\r\n" + POST + length(len(BODY)) + b"\r\n" + BODY[:3], BODY[3:] + GET[:9], GET[9:] + b"\r\n"], 0.05, 3)
    assert count(found) == found.count(b"HTTP/1.1 200") == 3, found
    found, is_closed = client.ask([GET + b"\r\n" + POST + b"Content-Length : %d\r\n\r\n" % len(HIDDEN) + HIDDEN])
    assert count(found) <= 2 and b'"object":"list"' not in found and is_closed, found


LENGTHS = [b"-5", b"-0", b"+5", b"", b"abc", b"5 5", b"5,5", b"0x10", b"1e3", b"1.0", b"99999999999999999999"]


def check_lengths(client):
    """A length that is no number has one answer, however it comes, also where libmicrohttpd reads it: it would send two heads."""
    first = GET + b"\r\n"
    for value in LENGTHS:
        head = POST + b"Content-Length: " + value + b"\r\n\r\n"
        drip = [bytes([byte]) for byte in head[:40]] + [head[40:]]
        ways = [([head], 1), ([head + BODY], 1), ([head[:-3], head[-3:] + BODY], 1), (drip, 1), ([first + head + BODY], 2), ([first + head[:30], head[30:] + BODY], 2)]
        for (pieces, n), (_, found, is_closed) in zip(ways, client.ask_all([(value, pieces, 0.003) for pieces, _ in ways]), strict=True):
            assert found.count(b"HTTP/1.1 ") == n and is_closed, f"Content-Length {value}: {found}"
            assert found.rpartition(b"HTTP/1.1 ")[2].startswith(b"400 ") and b"invalid_request_error" in found, f"Content-Length {value}: {found}"


def check_large(client):
    """What libmicrohttpd has no memory for, which it would answer with two heads or none."""
    for head in (GET + b"X:\r\n" * 3000 + b"\r\n", GET + b"Cookie: " + b"a=b;" * 5000 + b"\r\n\r\n", b"GET /props?" + b"&" * 15000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
                 GET + b"X: " + b"a" * 200000):
        found, is_closed = client.ask([head])
        assert (is_closed or client.context and b"200 OK" in found) and count(found) <= 1, found
        assert client.context or len(head) > 100000 or found.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 ")) and b"invalid_request_error" in found, found


def check_long(client):
    """A header block that is longer than what is looked at is still answered, and nothing after it that it may hide."""
    head = GET + b"".join(b"X-%d: %s\r\n" % (i, b"a" * 1000) for i in range(60))
    found, is_closed = client.ask([head + b"\r\n"], 0, 0.5)
    assert found.startswith(b"HTTP/1.1 200") and not is_closed, found
    found, is_closed = client.ask([head + b"Content-Length : %d\r\n\r\n" % len(HIDDEN) + HIDDEN])
    assert count(found) == 1 and is_closed and b'"object":"list"' not in found, found
    # In so many pieces that libmicrohttpd has it before its end.
    drip = [bytes([byte]) for byte in GET] + [b"Content-Length : %d\r\n\r\n" % len(HIDDEN) + HIDDEN]
    found, is_closed = client.ask(drip, 0.005)
    assert count(found) == 1 and is_closed and b'"object":"list"' not in found, found
    found, is_closed = client.ask([bytes([byte]) for byte in GET + b"\r\n"], 0.005, 0.5)
    assert found.startswith(b"HTTP/1.1 200") and not is_closed, found
    found, is_closed = client.ask([head + b"X: a\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN + HIDDEN])
    assert count(found) == 1 and is_closed and b'"object":"list"' not in found, found


def run(model, folder, context, *options):
    path = os.path.join(folder, "log-tls" if context else "log")
    with open(path, "w"):
        pass
    with Server(model, "-t", "1", "-c", "512", "--max-header", "100000", "--api-key", KEY, "--access-log", path, *options, context=context) as server:
        client = Client(server, context)
        begin = time.monotonic()
        check_good(client)
        check_pipeline(client)
        check_long(client)
        check_lengths(client)
        check_large(client)
        check_chunks(client)
        check_bad(client)
        check_bad_later(client)
        print(f"{'TLS' if context else 'TCP'}: {time.monotonic() - begin:.1f} s")
    with open(path) as log:
        assert not any(json.loads(line)["path"] == "/v1/models" for line in log), "a body was read as a request"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as threads:  # most of the time both wait
        certificate, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        context = ssl.create_default_context(cafile=certificate)
        for each in [threads.submit(run, args.model, folder, None), threads.submit(run, args.model, folder, context, "--tls-cert", certificate, "--tls-key", key)]:
            each.result()
    print("no request was read from a body")


if __name__ == "__main__":
    main()
