"""A quern serve for tests: started on a free port of loopback, asked without any package, stopped at the end.

    with Server("models/quern-demo.gguf", "--parallel", "4") as server:
        status, headers, body = ask(server.port, "GET", "/health")
"""
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SANITIZED = bool(os.environ.get("QN_SANITIZE"))
LIMIT = 120 if SANITIZED else 60  # seconds that anything may take


class Server:
    def __init__(self, model, *options, context=None, stderr=None, environment=None):
        """model None: the options have it. context: of TLS, with which the server is asked. stderr: a file in place of the log.
        environment: variables beside those of this process."""
        self.context = context
        program = os.path.join(os.environ["QN_BIN"], "quern")
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        model = [] if model is None else ["-m", model]
        self.process = subprocess.Popen([program, "serve", *model, "--port", "0", *options], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=stderr or self.log, env={**os.environ, **(environment or {})})
        try:
            self.wait_until_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def wait_until_ready(self):
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            text = self.text()
            found = re.search(r"https?://[^\s:]+:(\d+)", text)
            if self.process.poll() is not None:
                for library in "libmicrohttpd", "GnuTLS":
                    if f"built without {library}" in text:
                        print(f"skipped: this quern has no {library}")
                        sys.exit(77)
                raise RuntimeError(f"quern serve ended with {self.process.returncode}: {text}")
            if found:
                self.port = int(found[1])
                self.url = f"http://127.0.0.1:{self.port}"
                if ask(self.port, "GET", "/health", context=self.context)[0] == 200:
                    return
            time.sleep(0.02)
        raise RuntimeError(f"quern serve is not ready: {self.text()}")

    def resident(self):
        """Bytes of memory of the process."""
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

    def metrics(self):
        """Samples by name with labels."""
        text = ask(self.port, "GET", "/metrics")[2].decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}

    def metric(self, name):
        """The sum of all samples of a name."""
        return sum(value for sample, value in self.metrics().items() if sample.split("{")[0] == name)

    def wait_idle(self):
        end = time.monotonic() + LIMIT
        while self.metric("quern_requests_running") or self.metric("quern_requests_waiting"):
            assert time.monotonic() < end, "requests are still there"
            time.sleep(0.05)

    def stop(self):
        """SIGTERM; the process must end well, and a sanitizer must have found nothing."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LIMIT)
        text = self.text()
        assert status == 0 and "Sanitizer" not in text, f"quern serve ended with {status}: {text[-4000:]}"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:
            self.process.kill()
            self.process.wait()
            print(self.text()[-4000:])


def ask(port, method, path, body=None, headers=(), source="127.0.0.1", context=None):
    """One request by its own connection: status, headers, body."""
    return asyncio.run(ask_once(port, method, path, body, headers, source, context))


async def ask_once(port, method, path, body=None, headers=(), source="127.0.0.1", context=None):
    connection = Connection(port, source, context)
    try:
        return await asyncio.wait_for(connection.ask(method, path, body, headers), LIMIT)
    finally:
        connection.close()


class Connection:
    """A connection of HTTP/1.1 that stays open between requests."""

    def __init__(self, port, source="127.0.0.1", context=None):
        self.port, self.source, self.context, self.writer = port, source, context, None
        self.head = None  # status and headers of the answer that has begun

    async def open(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24, local_addr=(self.source, 0), ssl=self.context)

    async def send(self, method, path, body=None, headers=()):
        self.head = None
        if not self.writer or self.reader.at_eof():
            self.close()
            await self.open()
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        lines = {"Host": f"127.0.0.1:{self.port}", **({"Content-Type": "application/json"} if body is not None else {}), **dict(headers)}
        if body is not None:
            lines.setdefault("Content-Length", str(len(data)))
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
        self.writer.write(f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1") + data)
        await self.writer.drain()

    async def receive(self, method="GET"):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split()[1])
        headers = {line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip() for line in head[1:] if line}
        if status == 100:
            return await self.receive(method)
        self.head = status, headers
        body = b""
        if method == "HEAD" or status in (204, 304):
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readuntil(b"\r\n")
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        else:
            body = await self.reader.read()
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    async def ask(self, method, path, body=None, headers=()):
        await self.send(method, path, body, headers)
        return await self.receive(method)

    def close(self):
        """At once, with a reset if something was not read."""
        if self.writer:
            self.writer.transport.abort()
        self.writer = None


def events_of(body):
    """The data of a stream's events; comments are left out."""
    text = body.decode()
    assert not text or text.endswith("\n\n"), text[-200:]
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    assert all(event.startswith("data: ") and "\n" not in event for event in events), text[:2000]
    return [event[6:] for event in events]
