"""A server on loopback for tests of the chat page: the page as the binary has it, and OpenAI's protocol from a script.

The first word of the last message says how it is answered: the functions of BEHAVIOURS. To look at the page by hand:
    build/tests/page_files FOLDER >FOLDER/table && python3 tests/e2e/page_server.py FOLDER [PORT]"""
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MARKDOWN = """A quern is a **hand mill**: two stones, one *turning* on the other. The upper one is the [runner](https://example.org/runner).

## How it turns grain into flour

1. Grain goes into the eye.
2. The stones shear it:
   - the first pass cracks the hull
   - the second makes meal of it
3. Flour leaves at the rim.

| Stone | Diameter | Per hour |
| :--- | ---: | ---: |
| Saddle quern | 40 cm | 0.5 kg |
| Rotary quern | 35 cm | 2 kg |
| Water mill | 120 cm | 150 kg |

```python
def rate(diameter, turns):
    \"\"\"Kilograms an hour.\"\"\"
    return 0.0016 * diameter * turns  # measured

print(rate(35, 40))
```

> The mills of the gods grind slowly.

- [x] ~~Dress~~ the stones
- [ ] Weigh the `flour`
"""

# What must stay text. HIT would be set by anything that runs.
XSS = """<script>window.HIT = 1</script>
<img src=x onerror="window.HIT = 2">

[a](javascript:window.HIT=3) [b](JaVaScRiPt:window.HIT=4) [c](data:text/html,<script>window.HIT=5</script>) [d](&#106;avascript:window.HIT=6)
[e](vbscript:x) [f](//evil.example/x) [g](/v1/models) <javascript:window.HIT=7> [h](https://example.org/"onmouseover="window.HIT=8")

![i](https://evil.example/pixel.png) ![j](javascript:window.HIT=9)

<svg onload="window.HIT = 10"><a href="javascript:window.HIT=11">k</a></svg>

<iframe src="javascript:window.HIT=12"></iframe><style>body { display: none }</style><base href="https://evil.example/">

| <img src=x onerror="window.HIT=13"> | `<b>` |
| --- | --- |
| [l](javascript:window.HIT=14) | <form action="https://evil.example"><input name=x></form> |

```html"><img src=x onerror="window.HIT=15">
</code></pre><script>window.HIT = 16</script>
```

# <a id="input" name="composer">m</a>

[n]: javascript:window.HIT=17
[n] and [o][n] and https://example.org/?a=1&b=<script>
"""


def count(messages):
    """The tokens of a prompt: four characters each."""
    return sum(8 + len(message["content"]) // 4 for message in messages)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    n_prompt = 1204

    def log_message(self, *args):
        pass

    def answer(self, status, body, kind="application/json", headers=()):
        body = json.dumps(body).encode() if kind == "application/json" else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, message, code=None):
        self.answer(status, {"error": {"message": message, "type": "error", "param": None, "code": code}})

    def is_allowed(self):
        key = self.server.page.key
        if key is None or self.headers["Authorization"] == f"Bearer {key}":
            return True
        if self.command == "POST":
            time.sleep(self.server.page.slow_refusal)
        self.refuse(401, "wrong key", "invalid_api_key")
        return False

    def do_GET(self):
        page = self.server.page
        if page.is_closing:
            self.close_connection = True  # of one that was kept alive
            return
        path = self.path.split("?")[0]
        page.note("GET", path, None)
        file = page.files.get(path)
        if file:
            is_compressed = file["gzip"] and "gzip" in (self.headers["Accept-Encoding"] or "")
            etag, body = (file["gzip_etag"], file["gzip"]) if is_compressed else (file["etag"], file["bytes"])
            headers = {"ETag": etag, "Cache-Control": "no-cache", "Content-Security-Policy": page.table["policy"],
                       "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
            if self.headers["If-None-Match"] == etag:
                return self.answer(304, b"", file["type"], headers)
            return self.answer(200, body, file["type"], dict(headers, **({"Content-Encoding": "gzip"} if is_compressed else {})))
        if path == "/health":
            return self.answer(503, {"error": {"message": "loading"}}) if page.is_loading else self.answer(200, {"status": "ok"})
        if path == "/v1/models" and self.is_allowed():
            return self.answer(200, {"object": "list", "data": [{"id": name, "object": "model", "meta": {"n_ctx": page.n_ctx}, "reasoning": page.reasoning}
                                                                for name in page.models]})
        if path == "/props" and self.is_allowed():
            return self.answer(200, {"default_generation_settings": {"n_ctx": 8192, "params": {"temperature": 0.7, "top_p": 0.95}}})
        if path not in ("/v1/models", "/props"):
            self.refuse(404, "no such path")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.page.note("POST", self.path, body)
        if not self.is_allowed():
            return
        n_prompt = count(body["messages"])
        if self.path.endswith("/input_tokens"):
            return self.answer(200, {"object": "response.input_tokens", "input_tokens": n_prompt})
        if self.server.page.counts_tokens:
            self.n_prompt = n_prompt
        last = body["messages"][-1]["content"]
        self.started = time.monotonic()
        self.n = 0
        try:
            BEHAVIOURS.get((last.split() or [""])[0], echo)(self, last, body)
        except (BrokenPipeError, ConnectionResetError):
            self.server.page.note("GONE", self.path, self.n)
            self.close_connection = True

    # ---- Streams ----

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self.send({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})

    def send(self, chunk):
        self.wfile.write(f"data: {json.dumps(dict(chunk, object='chat.completion.chunk'))}\n\n".encode())
        self.wfile.flush()

    def delta(self, delay=0.0, **delta):
        if self.server.page.is_closing:
            raise BrokenPipeError
        time.sleep(delay)
        self.n += 1
        timings = {"cache_n": 0, "prompt_n": self.n_prompt, "predicted_n": self.n}
        self.send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "timings": timings})

    def text(self, text, delay=0.0, size=7, name="content"):
        for i in range(0, len(text), size):
            self.delta(delay, **{name: text[i:i + size]})

    def end(self, reason="stop"):
        seconds = time.monotonic() - self.started
        timings = {"cache_n": 1152, "predicted_n": self.n, "predicted_per_second": self.n / max(seconds, 0.001)}
        if self.server.page.speed:
            timings["predicted_per_second"] = self.server.page.speed
        self.send({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "timings": timings})
        self.send({"choices": [], "usage": {"prompt_tokens": self.n_prompt, "completion_tokens": self.n, "total_tokens": self.n_prompt + self.n,
                                            "prompt_tokens_details": {"cached_tokens": 1152}}})
        self.wfile.write(b": comment\n\ndata: [DONE]\n\n")


def echo(h, last, body):
    h.begin()
    h.text(f"You said: {last}")
    h.end()


def markdown(h, last, body):
    h.begin()
    h.text(MARKDOWN, 0.002)
    h.end()


def slow(h, last, body):
    h.begin()
    for i in range(600):
        h.delta(0.05, content=f"word{i} ")
    h.end()


def fast(h, last, body):
    h.begin()
    h.text(MARKDOWN * 20, 0, 4)
    h.end()


def think(h, last, body):
    h.begin()
    h.text("The stones turn, the grain is sheared. <b>I</b> say so.", 0.02, name="reasoning_content")
    time.sleep(0.6)
    h.text("It is the shear between the stones.")
    h.end()


def tools(h, last, body):
    h.begin()
    h.text("I look it up.")
    h.delta(tool_calls=[{"index": 0, "id": "call_0", "type": "function", "function": {"name": "look_up", "arguments": ""}}])
    for part in ('{"te', 'xt": "<i>', 'quern</i>"}'):
        h.delta(tool_calls=[{"index": 0, "function": {"arguments": part}}])
    h.end("tool_calls")


def xss(h, last, body):
    h.begin()
    h.text(XSS, 0, 5, name="reasoning_content")
    h.text(XSS, 0, 5)
    h.delta(tool_calls=[{"index": 0, "id": "<b>", "function": {"name": "<img src=x onerror=window.HIT=18>", "arguments": "<script>window.HIT=19</script>"}}])
    h.end()


def cut(h, last, body):
    h.begin()
    h.text("This is only the beginn")


def error(h, last, body):
    h.begin()
    h.text("So far")
    h.wfile.write(b'data: {"error": {"message": "the device <b>failed</b>", "code": "failed"}}\n\n')


def fail(h, last, body):
    h.refuse(500, "the answer could not be completed", "failed")


def overflow(h, last, body):
    h.refuse(400, "the prompt has 9000 tokens, the context 8192", "context_length_exceeded")


def short(h, last, body):
    h.begin()
    h.text("An answer that is too")
    h.end("length")


BEHAVIOURS = {f.__name__: f for f in (markdown, slow, fast, think, tools, xss, cut, error, fail, overflow, short)}


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request, address):
        pass  # a browser that leaves


class PageServer:
    """folder: what page_files wrote, its output in the file `table`."""

    def __init__(self, folder):
        self.table = json.load(open(os.path.join(folder, "table")))
        self.files = {}
        for i, file in enumerate(self.table["files"]):
            file["bytes"] = open(os.path.join(folder, str(i)), "rb").read()
            file["etag"] = f'"{file["etag"]}"'
            file["gzip"] = None
            if file["gzip_etag"]:
                file["gzip"] = open(os.path.join(folder, f"{i}.gz"), "rb").read()
                file["gzip_etag"] = f'"{file["gzip_etag"]}"'
            self.files[file["path"]] = file
        self.key, self.is_loading, self.models, self.speed = None, False, ["quern-demo"], 0
        self.slow_refusal = 0  # seconds that an answer of 401 to a POST takes
        self.n_ctx, self.reasoning, self.counts_tokens = 8192, {"is_optional": True, "efforts": ["low", "medium", "xhigh"], "default_effort": "medium"}, False
        self.log, self.lock, self.port = [], threading.Lock(), 0

    def note(self, method, path, body):
        with self.lock:
            self.log.append((method, path, body))

    def requests(self, method="POST"):
        with self.lock:
            return [body for m, _, body in self.log if m == method]

    def start(self, port=0):
        self.is_closing = False
        self.http = Server(("127.0.0.1", port or self.port), Handler)
        self.http.page = self
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self):
        self.is_closing = True
        self.http.shutdown()
        self.http.server_close()


if __name__ == "__main__":
    server = PageServer(sys.argv[1])
    server.start(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"http://127.0.0.1:{server.port}/")
    threading.Event().wait(3600)
