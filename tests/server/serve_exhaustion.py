"""The worst body of each endpoint: the memory of quern serve grows by 4 times its bytes and 64 MB at most, and comes back.

    serve_exhaustion.py MODEL AGENT [NAME ...]

MODEL has a large vocabulary, AGENT a template with tools, both small. NAMEs: only these cases. QN_BIN names the folder of quern.

A case is a function that returns its path, its body as bytes, the statuses that the answer may have, and bytes that it has; `of` names the model.
"""
import asyncio
import contextlib
import functools
import json
import sys
import time

from serve_process import LIMIT, Connection, Server, ask, ask_once

CHAT, TEXT, LLAMA, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages", "/v1/responses"
MB = 1 << 20
MAX_BODY = 16 * MB
FACTOR, SLACK = 4, 64 * 1000 * 1000  # the bar
CLIENT = 2 * (32 * MB + 3 * MAX_BODY)  # docs/server.md
CASES = []


def case(of):
    def add(function):
        CASES.append((function.__name__, of, function))
        return function
    return add


def body_of(value, **more):
    return json.dumps({**value, **more}, separators=(",", ":")).encode()


def filled(before, text, after, size):
    """As many copies of a text between the two as the size has room for."""
    return before + text * ((size - len(before) - len(after)) // len(text)) + after


SAY = {"messages": [{"role": "user", "content": "Hm?"}], "max_tokens": 4}
FUNCTION = {"type": "function", "function": {"name": "f", "description": "d" * 300000, "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}


# ---- Settings that are copied ----


@case("model")
def biases_as_texts():
    words = [[f" {chr(97 + i % 26)}{i * 7919 % 100003} the lantern" * 8, 1 + i % 3] for i in range(4096)]
    return LLAMA, body_of({"prompt": "Once", "n_predict": 1, "logit_bias": words, "n_cmpl": 128}), {200, 400, 413}


@case("model")
def biases_of_all_tokens():
    return LLAMA, body_of({"prompt": "Once", "n_predict": 1, "n_cmpl": 128, "logit_bias": [[i, i % 7 + 0.123] for i in range(4096)]}), {200}


@case("model")
def chosen_fields():
    fields = ["generation_settings/logit_bias", "generation_settings/seed", "prompt"] + [f"generation_settings/x{i}" for i in range(61)]
    return LLAMA, body_of({"prompt": "Once", "n_predict": 1, "n_cmpl": 128, "response_fields": fields, "logit_bias": [[i, 0.5] for i in range(4096)]}), {200}


@case("model")
def stop_strings():
    return TEXT, body_of({"prompt": "Once", "max_tokens": 1, "n": 128, "stop": [f"{i:04}" + chr(33 + i) * 1000 for i in range(64)]}), {200}


@case("model")
def echoes():
    return TEXT, body_of({"prompt": "Once upon a time", "max_tokens": 1, "n": 128, "echo": True}), {200}


@case("model")
def log_probabilities():
    return CHAT, body_of(SAY, n=16, logprobs=True, top_logprobs=20, max_tokens=24, ignore_eos=True), {200, 413}


@case("agent")
def one_tool_512_times():
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}] * 512}
    return CHAT, body_of(SAY, tools=[FUNCTION], tool_choice={"type": "allowed_tools", "allowed_tools": allowed}), {200, 400}


@case("agent")
def one_tool_512_times_of_responses():
    tool = {"type": "function", **FUNCTION["function"]}
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}] * 512}
    return RESPONSES, body_of({"input": "a", "max_output_tokens": 4, "tools": [tool], "tool_choice": choice, "stream": True}), {200, 400}


@case("agent")
def instructions():
    return RESPONSES, filled(b'{"input":"a","stream":true,"max_output_tokens":4,"instructions":"', b"a\\t", b'"}', 4 * MB), {400, 413}


@case("model")
def long_name_of_a_model():
    return TEXT, filled(b'{"prompt":"a","stream":true,"max_tokens":64,"model":"', b"a", b'"}', 2 * MB), {400, 404}


# ---- Values ----


@case("model")
def objects():
    return CHAT, filled(b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1,"a":[', b"{},", b"{}]}", 16 * MB), {413}


@case("model")
def few_objects():
    return CHAT, filled(b'{"messages":[{"role":"user","content":"a","a":[', b"{},", b'{}]}],"max_tokens":1}', 890000), {200, 413}


@case("model")
def lists():
    return TEXT, filled(b'{"prompt":"a","max_tokens":1,"a":[', b"[],", b"[]]}", 1 * MB), {200, 413}


@case("model")
def members():
    text = "".join(f'"{i:x}":{i},' for i in range(60000)).encode()
    return TEXT, b'{"prompt":"a","max_tokens":1,"a":{' + text + b'"x":1}}', {200, 413}


@case("model")
def one_long_word():
    return CHAT, filled(b'{"messages":[{"role":"user","content":"', b"a", b'"}]}', 8 * MB), {400, 413}


@case("model")
def characters_that_are_normalised():
    return TEXT, filled(b'{"prompt":"', b"\xe0\xbd\xb1\xe0\xbd\xb4", b'"}', 8 * MB), {400, 413}


@case("model")
def digits():
    return TEXT, filled(b'{"prompt":"', b"1", b'"}', 8 * MB), {400, 413}


@case("model")
def lone_surrogates():
    return CHAT, filled(b'{"messages":[{"role":"user","content":"', rb"\ud800", b'"}]}', 16 * MB), {400, 413}


@case("model")
def wide_integers():
    return "/tokenize", filled(b'{"content":"a","a":[', b"123456789012345678901,", b"1]}", 4 * MB), {200, 413}


@case("agent")
def arguments():
    return CHAT, calls(0.25), {200, 400, 413}


def calls(share, size=16 * MB):
    """Calls whose arguments are texts of many values."""
    text = json.dumps("{\"a\":[" + "{}," * int(size * share / 3) + "{}]}").encode()
    call = b'{"id":"1","type":"function","function":{"name":"f","arguments":' + text + b"}},"
    return filled(b'{"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[', call, b"null]}]}", size).replace(b",null]", b"]")


@case("agent")
def arguments_of_responses():
    text = json.dumps("{\"a\":[" + "{}," * 20000 + "{}]}").encode()
    item = b'{"type":"function_call","call_id":"1","name":"f","arguments":' + text + b"},"
    return RESPONSES, filled(b'{"max_output_tokens":1,"input":[{"role":"user","content":"a"},', item, b'{"role":"user","content":"a"}]}', 8 * MB), {200, 400, 413}


@case("agent")
def arguments_of_messages():
    block = b'{"type":"tool_use","id":"1","name":"f","input":{"a":[' + b"{}," * 20000 + b"{}]}},"
    return MESSAGES, filled(b'{"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[', block, b'{"type":"text","text":"a"}]}]}', 8 * MB), {200, 400, 413}


@case("agent")
def values_of_tools():
    tool = b'{"type":"function","function":{"name":"f","parameters":{"type":"object","a":[' + b"{}," * 100000 + b"{}]}}}"
    return CHAT, b'{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[' + tool + b"]}", {200, 400, 413}


@case("agent")
def schema():
    return CHAT, filled(b'{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"anyOf":[', b'{"type":"string"},',
                        b'{"type":"string"}]}}}}', 1 * MB), {200, 400, 413}


# ---- Texts ----


@case("model")
def long_message():
    return CHAT, filled(b'{"messages":[{"role":"user","content":"', b"a b c ", b'"}]}', 16 * MB), {400, 413}


@case("agent")
def long_message_of_messages():
    return MESSAGES, filled(b'{"max_tokens":5,"messages":[{"role":"user","content":"', b"a b c ", b'"}]}', 8 * MB), {400, 413}


@case("agent")
def long_input_of_responses():
    return RESPONSES, filled(b'{"input":"', b"a b c ", b'"}', 8 * MB), {400, 413}


@case("agent")
def many_parts():
    return RESPONSES, filled(b'{"input":[{"role":"user","content":[', b'{"type":"input_text","text":"a"},', b'{"type":"input_text","text":"a"}]}]}', 4 * MB), {400, 413}


@case("model")
def counts():
    return CHAT + "/input_tokens", filled(b'{"messages":[{"role":"user","content":"', b"a b c ", b'"}]}', 8 * MB), {200, 413}


@case("agent")
def counts_of_messages():
    return MESSAGES + "/count_tokens", filled(b'{"messages":[{"role":"user","content":"', b"a b c ", b'"}]}', 8 * MB), {200, 413}


@case("agent")
def counts_of_responses():
    return RESPONSES + "/input_tokens", filled(b'{"input":"', b"a b c ", b'"}', 8 * MB), {200, 413}


@case("model")
def template():
    return "/apply-template", filled(b'{"messages":[{"role":"user","content":"', b"a\\n", b'"}]}', 8 * MB), {200, 413}


@case("model")
def tokens_with_pieces():
    return "/tokenize", filled(b'{"with_pieces":true,"content":"', b"\xc3\xa9~", b'"}', 4 * MB), {200, 413}


@case("model")
def long_prompt():
    return TEXT, filled(b'{"prompt":"', b"a b c ", b'"}', 8 * MB), {400, 413}


@case("model")
def many_short_prompts():
    return LLAMA, filled(b'{"n_predict":1,"prompt":[1,', b'"a",', b'"a"]}', 4 * MB), {400, 413}


@functools.cache
def ids(size):
    return ",".join(str(i * 7919 % 4096) for i in range(size)).encode()


@case("model")
def two_million_ids():
    body = b'{"prompt":[' + ids(2000000) + b"]"
    return TEXT, body + b" " * (MAX_BODY - 1 - len(body)) + b"}", {400}, b"2000000 tokens"  # longer than the context, and read to its end


@case("model")
def two_million_ids_as_text():
    body = b'{"tokens":[' + ids(2000000) + b"]"
    return "/detokenize", body + b" " * (MAX_BODY - 1 - len(body)) + b"}", {200}


# ---- Measuring ----


def status_of(server, name):
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def forget_peak(server):
    """VmHWM is what is resident now."""
    with open(f"/proc/{server.process.pid}/clear_refs", "w") as file:
        file.write("5")


def wait_resident(server, most):
    """What is resident once it is at most so much, or after some seconds."""
    end = time.monotonic() + LIMIT / 2
    while server.resident() > most and time.monotonic() < end:
        time.sleep(0.05)
    return server.resident()


class Growth:
    """How much more memory is resident in a block than before it, at most; and after it."""

    def __init__(self, server, name, n_body):
        self.server, self.name, self.n_body = server, name, n_body

    def __enter__(self):
        forget_peak(self.server)
        self.before, self.begin = self.server.resident(), time.monotonic()
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        seconds, most = time.monotonic() - self.begin, FACTOR * self.n_body + SLACK
        kept = wait_resident(self.server, self.before + 16 * MB) - self.before
        grown = status_of(self.server, "VmHWM") - self.before
        print(f"{self.name}: {self.n_body / 1e6:.2f} MB, grown by {grown / 1e6:.0f} MB of {most / 1e6:.0f}, kept {kept / 1e6:.0f} MB, {seconds:.2f} s", flush=True)
        if grown > most or kept > 32 * MB:
            FAILED.append(f"{self.name}: too much memory")


FAILED = []


def check_case(server, name, function):
    path, body, statuses, *expected = function()
    with Growth(server, name, len(body)):
        status, _, found = ask(server.port, "POST", path, body)
    print(f"    {status} {found[:160]!r}")
    if status not in statuses or any(part not in found for part in expected):
        FAILED.append(f"{name}: {status} {found[:300]!r}")


# ---- Answers that nobody reads ----


async def settle(server):
    """Until resident memory stays as it is."""
    end, before = time.monotonic() + LIMIT / 2, 0
    while abs(server.resident() - before) > 4 * MB and time.monotonic() < end:
        before = server.resident()
        await asyncio.sleep(1.5)


async def hold(server, path, body, n):
    """So many connections that ask and do not read; yields, and ends them."""
    connections = [Connection(server.port) for _ in range(n)]
    for connection in connections:
        await connection.open()
        connection.writer.transport.pause_reading()
    with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.gather(*[connection.send("POST", path, body) for connection in connections]), 5)
    await settle(server)
    yield
    for connection in connections:
        connection.close()
    await asyncio.sleep(0.1)


async def check_unread(server, name, path, body, n):
    with Growth(server, name, n * len(body)):
        async for _ in hold(server, path, body, n):
            status = (await ask_once(server.port, "GET", "/health"))[0]
            assert status == 200


async def check_unfinished(server):
    """Bodies of one client that do not end have the memory of a client; one more request gets 429, and others are answered."""
    forget_peak(server)
    before, data = server.resident(), b'{"prompt":"' + b"a" * (15 * MB)
    connections = [Connection(server.port, "127.0.0.2") for _ in range(16)]
    for connection in connections:
        await connection.open()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {MAX_BODY}\r\n\r\n"
        connection.writer.write(head.encode() + data)
    await settle(server)
    grown = status_of(server, "VmHWM") - before
    status, headers, found = await ask_once(server.port, "POST", TEXT, data + b'"}', source="127.0.0.2")
    other = (await ask_once(server.port, "POST", TEXT, body_of({"prompt": "a", "max_tokens": 1})))[0]
    for connection in connections:
        connection.close()
    await asyncio.sleep(0.1)  # until they are
    kept = wait_resident(server, before + 16 * MB) - before
    print(f"16 bodies that do not end: grown by {grown / 1e6:.0f} MB of {CLIENT / 1e6:.0f}, kept {kept / 1e6:.0f} MB; then {status}, others {other}")
    if grown > CLIENT + 16 * MB or kept > 32 * MB or status != 429 or headers.get("retry-after") != "1" or other != 200:
        FAILED.append(f"bodies that do not end: {grown} bytes, kept {kept}; {status} {headers} {found[:200]!r}, others {other}")


def check_all_unread(server):
    asyncio.run(check_unfinished(server))
    body = filled(b'{"with_pieces":true,"content":"', b"\xc3\xa9~", b'"}', 4 * MB)
    asyncio.run(check_unread(server, "8 lists of tokens that nobody reads", "/tokenize", body, 8))
    body = body_of({"prompt": "Once", "stream": True, "n": 16, "ignore_eos": True, "logprobs": 20, "max_tokens": 200})
    asyncio.run(check_unread(server, "4 streams that nobody reads", TEXT, body, 4))


# ---- Requests that wait ----


def nested_tools():
    """44 kB whose values take 60 times that."""
    nested = json.dumps(functools.reduce(lambda inner, _: {"a": inner}, range(40), {}), separators=(",", ":"))
    parameters = {"type": "object", "properties": json.loads("{" + ",".join(f'"p{i}":{nested}' for i in range(180)) + "}")}
    return body_of(SAY, tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}])


def long_stops():
    return body_of(SAY, stop=[f"{i:03}" + "".join(chr(33 + (i * 7919 + j * j * 31 + j) % 90) for j in range(1017)) for i in range(64)])


async def check_queue(server, name, body, n):
    """A client's requests in the queue have the memory of a client; with more it gets 429. Others are answered, and all of it comes back."""
    source = "127.0.0.2"
    busy, others = Connection(server.port, source), [Connection(server.port, source) for _ in range(n)]
    await busy.send("POST", TEXT, body_of({"prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 50000, "n": 100}))
    await asyncio.sleep(0.5)
    forget_peak(server)
    before, refused = server.resident(), []
    asking = [asyncio.create_task(connection.ask("POST", CHAT, body)) for connection in others]
    while (await asyncio.wait(asking, timeout=3))[0] != set(refused):
        refused = [task for task in asking if task.done()]
    grown = status_of(server, "VmHWM") - before
    wrong = [task.result()[:2] for task in refused if task.result()[0] != 429 or task.result()[1].get("retry-after") != "1"]
    for connection in [busy, *others]:
        connection.close()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.get_running_loop().run_in_executor(None, server.wait_idle)
    kept = wait_resident(server, before + 32 * MB) - before
    print(f"{name}: {n} x {len(body)} bytes, {len(refused)} refused, grown by {grown / 1e6:.0f} MB of {CLIENT / 1e6:.0f}, kept {kept / 1e6:.0f} MB", flush=True)
    if grown > CLIENT + SLACK or kept > 48 * MB or wrong:
        FAILED.append(f"{name}: {grown} bytes, kept {kept}; {wrong[:2]}")
    return len(refused), grown


def check_queues(agent):
    with Server(agent, "-t", "2", "-c", "60000", "--max-body", str(MAX_BODY), "--quiet") as server:
        ask(server.port, "POST", CHAT, body_of(SAY))
        refused, grown = asyncio.run(check_queue(server, "tools that wait", nested_tools(), 250))
        if refused or grown > 250 * 0.5 * MB:
            FAILED.append(f"tools that wait: {refused} refused, {grown} bytes")
        if not asyncio.run(check_queue(server, "stop strings that wait", long_stops(), 250))[0]:
            FAILED.append("stop strings that wait: none is refused")


def main():
    models = {"model": sys.argv[1], "agent": sys.argv[2]}
    wanted = sys.argv[3:]
    for of, model in models.items():
        with Server(model, "-t", "2", "--max-body", str(MAX_BODY), "--memory", "24M", "--prefix-cache", "off", "--quiet") as server:
            ask(server.port, "POST", CHAT, body_of(SAY))  # buffers of the first request
            ask(server.port, "POST", TEXT, body_of({"prompt": "a", "max_tokens": 400, "n": 16, "ignore_eos": True}))  # contexts
            for name, model_of, function in CASES:
                if model_of == of and (not wanted or name in wanted):
                    check_case(server, name, function)
            if of == "model" and (not wanted or "unread" in wanted):
                check_all_unread(server)
            server.wait_idle()
    if not wanted or "queues" in wanted:
        check_queues(models["agent"])
    assert not FAILED, "\n".join(FAILED)


if __name__ == "__main__":
    main()
