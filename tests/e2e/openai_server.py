#!/usr/bin/env python3
"""A server of OpenAI's protocol on loopback with known delays, for tests of quern bench-serve: openai_server.py FOLDER

The model's name says how it answers: the functions of BEHAVIOURS. A prompt of n words has 2 n + 7 tokens, of a chat 4 more. FOLDER gets the
file `port` when it listens, and `log` with a JSON line for each request: when it came, its body and its headers."""
import json, os, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

folder = sys.argv[1]
lock = threading.Lock()
count = {}
FIRST, GAP, LONG_GAP = 0.3, 0.04, 0.4


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, value, headers=()):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/none/v1/models":
            return self.answer(404, {"error": {"message": "no such path"}})
        self.answer(200, {"object": "list", "data": [{"id": "steady", "object": "model"}]})

    def do_POST(self):
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock, open(os.path.join(folder, "log"), "a") as log:
                print(json.dumps({"time": time.monotonic(), "path": self.path, "body": body, "headers": dict(self.headers)}), file=log)
            self.chat = self.path == "/v1/chat/completions"
            text = body["messages"][0]["content"] if self.chat else body["prompt"]
            self.n_prompt = 2 * len(text.split()) + 7 + 4 * self.chat
            self.n = body["max_tokens"]
            with lock:
                self.index = count[body["model"]] = count.get(body["model"], -1) + 1
            # The first two measure the words.
            BEHAVIOURS[body["model"] if self.index >= 2 else "quick"](self)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def begin(self, kind="text/event-stream"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send(self, text):
        self.wfile.write(text.encode())
        self.wfile.flush()

    def event(self, text, key="content", **more):
        choice = {"index": 0, "delta": {key: text}} if self.chat else {"index": 0, "text": text}
        self.send("data: " + json.dumps({"choices": [dict(choice, **more)]}) + "\n\n")

    def end(self, usage=True):
        if usage:
            self.send("data: " + json.dumps({"choices": [], "usage": {
                "prompt_tokens": self.n_prompt, "completion_tokens": self.n, "prompt_tokens_details": {"cached_tokens": 3}}}) + "\n\n")
        self.send("data: [DONE]\n\n")


def quick(h):
    h.begin()
    for i in range(h.n):
        h.event(f" {i}")
    h.end()


def steady(h):
    """FIRST to the first token, GAP between the others, of every fifth request LONG_GAP once."""
    h.begin()
    if h.chat:
        h.event("", key="role")  # no text
    time.sleep(FIRST * (2 if h.index % 5 == 0 else 1))
    for i in range(h.n):
        if i:
            time.sleep(LONG_GAP if h.index % 5 == 2 and i == 1 else GAP)
        h.event(f" {i}", finish_reason="length" if i + 1 == h.n else None)
    h.end()


def spelled(h):
    """Comments, CRLF, events of several lines, pieces of a byte, no space after the colon, fields that are not known."""
    h.begin()
    lines = [": a comment", "", "event: delta", "id: 1", 'data:{"choices": [{"delta": {"reasoning_content": "a"},', 'data: "text": "a"}]}', ""]
    lines += ['data: {"choices": [{"delta": {"tool_calls": [{"index": 0}]}, "text": "b"}]}', "", "data: [DONE]"]
    for byte in "\r\n".join(lines):
        h.send(byte)


def uncounted(h):
    h.begin()
    for i in range(h.n):
        h.event(f" {i}")
    h.end(usage=False)


def busy(h):
    if h.index % 2:
        return h.answer(429, {"error": {"message": "the queue\x1b[31m is full"}}, {"Retry-After": "1"})
    quick(h)


def cut(h):
    h.begin()
    h.event(" a")
    h.event(" b")


def reset(h):
    h.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: {")
    h.close_connection = True


def not_json(h):
    h.begin()
    h.event(" a")
    h.send("data: {choices}\n\n")
    time.sleep(5)


def failing(h):
    h.begin()
    h.event(" a")
    h.send('data: {"error": {"message": "out of memory", "code": 500}}\n\n')
    time.sleep(5)


def endless(h):
    h.begin()
    while True:
        h.send("data: " + "x" * 65536)


def talkative(h):
    h.begin()
    while True:
        h.send(": " + "still here " * 8000 + "\n\n")
        h.event("token ")


def stuck(h):
    h.begin()
    h.event(" a")
    time.sleep(30)


def empty(h):
    h.begin()
    h.end()


def whole(h):
    h.answer(200, {"choices": [{"message": {"content": "not streamed"}}]})


def closed(h):
    h.close_connection = True


def moved(h):
    h.answer(307, {}, {"Location": "http://127.0.0.1:1/v1/completions"})


def keyed(h):
    if h.headers.get("Authorization") != "Bearer secret":
        return h.answer(401, {"error": {"message": "no key"}})
    quick(h)


BEHAVIOURS = {f.__name__: f for f in (quick, steady, spelled, uncounted, busy, cut, reset, not_json, failing, endless, talkative, stuck, empty, whole, closed,
                                      moved, keyed)}
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
with open(os.path.join(folder, "port.part"), "w") as file:
    print(server.server_address[1], file=file)
os.rename(os.path.join(folder, "port.part"), os.path.join(folder, "port"))
server.serve_forever()
