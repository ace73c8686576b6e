"""quern serve as agents use it: Anthropic's Messages and OpenAI's Responses with the official packages and strict validation, every raw
event checked; first requests of Claude Code and Codex and what follows them; errors, queues and the end of the server.

    serve_agents.py DEMO AGENT

The models are models/quern-demo.gguf and tests/golden/agent.gguf, which thinks, looks up once, and then says what it found. QN_BIN names
the folder of quern.
"""
import asyncio
import json
import os
import sys
import threading
import time

try:
    import anthropic
    import openai
    import pydantic
except ImportError as missing:
    print(f"serve_agents: skipped: {missing}")
    sys.exit(2)

import agent_requests
from serve_process import LIMIT, SANITIZED, Connection, Server, ask

ALICE, BOB = "key-of-alice", "key-of-bob"
QUESTION, ANSWER, REASONING = "What is it?", "é 世🙂!", "I look it up."
INPUT = {"text": 'a "quern"', "n": 2}
ASK = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "look_up", "description": "Looks up a word.", "input_schema": agent_requests.LOOK_UP}
FUNCTION = {"type": "function", "name": "look_up", "parameters": agent_requests.LOOK_UP, "strict": True}
THINKING = {"type": "enabled", "budget_tokens": 2000}


class Red(pydantic.BaseModel):
    is_red: bool


def fails(kind, call, part=""):
    """The error of a call that must fail."""
    try:
        call()
    except kind as error:
        assert part in str(error), error
        return error
    raise AssertionError(f"it was answered, expected {kind.__name__}")


# ---- What passes over the wire ----


def events_of(data):
    """The events of a stream, whose names are their types. Comments are left out."""
    text = data.decode()
    assert text.endswith("\n\n"), text[-300:]
    found = []
    for event in text[:-2].split("\n\n"):
        if event.startswith(":"):
            continue
        name, value = event.split("\n")
        assert name.startswith("event: ") and value.startswith("data: "), event
        found.append(json.loads(value[6:]))
        assert found[-1]["type"] == name[7:], event
    return found


def check_messages_stream(events):
    """The message that events make, and their rules: each block is closed before the next one."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"], kinds
    message, is_open = events[0]["message"], False
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["input_tokens"] > 0
    for event in events[2:-2]:
        kind = event["type"]
        if kind == "ping":
            continue
        if kind == "content_block_start":
            block, signed = event["content_block"], False
            assert not is_open and event["index"] == len(message["content"])
            assert block.get("input", {}) == {} and not block.get("text") and not block.get("thinking") and not block.get("signature")
            message["content"].append(block)
            partial, is_open = "", True
            continue
        assert is_open and event["index"] == len(message["content"]) - 1, event
        if kind == "content_block_stop":
            is_open = False
            assert signed == (block["type"] == "thinking")
            if block["type"] == "tool_use":
                block["input"] = json.loads(partial)
            continue
        delta = event["delta"]
        assert delta["type"] == {"thinking": "thinking_delta", "text": "text_delta", "tool_use": "input_json_delta"}[block["type"]] or delta["type"] == "signature_delta"
        assert not signed
        if delta["type"] == "signature_delta":
            signed, block["signature"] = True, delta["signature"]
            assert block["type"] == "thinking" and len(delta["signature"]) > 32
        elif block["type"] == "tool_use":
            partial += delta["partial_json"]
        else:
            block[block["type"]] += delta[block["type"]]
    assert not is_open
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def check_responses_stream(events):
    """The response that events make, and their rules: numbers, items added before their deltas, done as they were told."""
    kinds = [event["type"] for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] in ("response.completed", "response.incomplete")
    last, items, item, text = events[-1]["response"], [], None, ""
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
    for event in events[2:-1]:
        kind = event["type"]
        assert event["output_index"] == len(items) - (kind != "response.output_item.added"), event
        if kind == "response.output_item.added":
            assert item is None and event["item"]["status"] == "in_progress"
            item, text = event["item"], ""
            items.append(item)
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == item["id"]
            items[-1], item = event["item"], None
        else:
            assert event["item_id"] == item["id"]
            text += event["delta"] if kind.endswith(".delta") else ""
            if kind.endswith(("_text.done", "arguments.done", "input.done")):
                assert text == event.get("text", event.get("arguments", event.get("input"))), event
    assert item is None and items == last["output"]
    return last


def post(server, path, body, key=ALICE, **headers):
    """Status, headers, and the body: a value of JSON, or the events of a stream."""
    found = ask(server.port, "POST", path, body, {"X-Api-Key": key, **headers})
    is_stream = found[1]["content-type"].startswith("text/event-stream")
    return found[0], found[1], events_of(found[2]) if is_stream else json.loads(found[2])


def clients(server, key=ALICE):
    options = {"max_retries": 0, "timeout": LIMIT, "_strict_response_validation": True}
    return (anthropic.Anthropic(api_key=key, base_url=server.url, http_client=anthropic.DefaultHttpxClient(trust_env=False), **options),
            openai.OpenAI(api_key=key, base_url=server.url + "/v1", http_client=openai.DefaultHttpxClient(trust_env=False), **options))


# ---- Messages ----


def check_messages(server):
    client, _ = clients(server)
    body = {"model": "any", "max_tokens": 3000, "messages": ASK, "tools": [TOOL], "thinking": THINKING}
    found = client.messages.create(**body)
    thinking, use = found.content
    assert (thinking.thinking, use.input, found.stop_reason) == (REASONING, INPUT, "tool_use") and len(thinking.signature) > 32, found
    assert found._request_id.startswith("req_") and found.usage.output_tokens == 7 and found.usage.output_tokens_details.thinking_tokens == 3
    with client.messages.stream(**body) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"thinking", "signature", "input_json", "content_block_stop", "message_stop"} <= kinds, kinds
    assert [b.type for b in final.content] == ["thinking", "tool_use"] and final.content[1].input == INPUT and final.stop_reason == "tool_use"
    prompt = {name: body[name] for name in ("model", "messages", "tools", "thinking")}
    for message in (found, final):
        usage = message.usage
        assert client.messages.count_tokens(**prompt).input_tokens == usage.input_tokens + usage.cache_read_input_tokens
    check_messages_stream(post(server, "/v1/messages?beta=true", {**body, "stream": True})[2])
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model and model.max_input_tokens == 32768

    turn = [*ASK, {"role": "assistant", "content": found.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "A mill."}]}]}]
    last = client.messages.create(**{**body, "messages": turn})
    assert [b.type for b in last.content] == ["text"] and last.content[0].text == ANSWER and last.stop_reason == "end_turn"

    looked_up = []

    @anthropic.beta_tool
    def look_up(text: str, n: int) -> str:
        """Looks up a word."""
        looked_up.append({"text": text, "n": n})
        return "A mill."

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(model="any", max_tokens=100, tools=[look_up], messages=ASK, max_iterations=3, stream=stream)
        assert runner.until_done().content[0].text == ANSWER and looked_up.pop() == INPUT and not looked_up


def check_texts(demo):
    client, _ = clients(demo)
    body = {"model": "any", "max_tokens": 40, "messages": ASK, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**body).content[0].text
    word = whole.split()[3]
    found = client.messages.create(**body, stop_sequences=[word, "no such text"])
    assert (found.stop_reason, found.stop_sequence, found.content[0].text) == ("stop_sequence", word, whole[:whole.index(word)])
    with client.messages.stream(**body) as stream:
        assert "".join(stream.text_stream) == whole and stream.get_final_message().stop_reason in ("end_turn", "max_tokens")
    assert client.messages.parse(**{**body, "max_tokens": 60}, output_format=Red).parsed_output.is_red in (True, False)
    error = fails(anthropic.BadRequestError, lambda: client.messages.create(**{**body, "messages": [{"role": "user", "content": "word " * 600}]}), "prompt is too long: ")
    assert error.body["type"] == "error" and error.request_id == error.body["request_id"], error.body


# ---- Responses ----


def check_responses(server):
    _, client = clients(server)
    body = {"model": "any", "input": QUESTION, "tools": [FUNCTION], "store": False, "include": ["reasoning.encrypted_content"]}
    found = client.responses.create(**body)
    reasoning, call = found.output
    assert reasoning.content[0].text == REASONING and reasoning.encrypted_content and json.loads(call.arguments) == INPUT and found.status == "completed"
    with client.responses.stream(**body) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.function_call_arguments.delta", "response.output_item.done", "response.completed"} <= kinds, kinds
    assert [item.type for item in final.output] == ["reasoning", "function_call"] and final.usage.output_tokens == found.usage.output_tokens == 7
    items = [item.model_dump(exclude_none=True) for item in found.output]
    turn = [{"role": "user", "content": QUESTION}, *items, {"type": "function_call_output", "call_id": call.call_id, "output": "A mill."}]
    last = client.responses.create(**{**body, "input": turn})
    assert last.output_text == ANSWER and [item.type for item in last.output] == ["message"]
    check_responses_stream(post(server, "/v1/responses", {**body, "input": turn, "stream": True})[2])

    assert client.responses.input_tokens.count(model="any", input=QUESTION, tools=[FUNCTION]).input_tokens == final.usage.input_tokens

    custom = {"type": "custom", "name": "look_up", "description": "Looks up."}
    found = client.responses.create(model="any", input=QUESTION, tools=[custom, {"type": "web_search"}], tool_choice="required", max_output_tokens=80)
    assert found.output[-1].type == "custom_tool_call", found.output
    status, _, counted = post(server, "/v1/chat/completions/input_tokens", {"messages": ASK, "stream": True})
    assert status == 200 and counted["input_tokens"] == client.chat.completions.create(model="any", messages=ASK, max_tokens=1).usage.prompt_tokens
    fails(openai.BadRequestError, lambda: client.responses.create(model="any", input="a", previous_response_id="resp_1"), "previous_response_id")
    probe = client.responses.create(model="any", input=[], max_output_tokens=1)
    assert probe.status == "incomplete" and probe.incomplete_details.reason == "max_output_tokens"


def check_structured(demo):
    _, client = clients(demo)
    parsed = client.responses.parse(model="any", input=QUESTION, text_format=Red, temperature=0)
    assert parsed.output_parsed.is_red in (True, False)
    with client.responses.stream(model="any", input=QUESTION, text_format=Red, temperature=0) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    parts = list(client.responses.create(model="any", input=QUESTION, max_output_tokens=8, temperature=0, stream=True))
    assert parts[-1].type == "response.incomplete" and "".join(p.delta for p in parts if p.type == "response.output_text.delta") == parts[-1].response.output_text
    error = fails(openai.BadRequestError, lambda: client.responses.create(model="any", input="word " * 600))
    assert error.code == "context_length_exceeded" and error.body["n_ctx"] == 512, error.body


# ---- First requests of agents, and second ones ----


def total(usage):
    return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def check_claude_code(server):
    first = agent_requests.claude_code(1)
    status, headers, events = post(server, "/v1/messages?beta=true", first, **agent_requests.CLAUDE_CODE_HEADERS)
    assert status == 200 and headers["request-id"].startswith("req_"), events
    message = check_messages_stream(events)
    thinking, use = message["content"]
    assert thinking["thinking"] == REASONING and use["input"] == INPUT and message["stop_reason"] == "tool_use"
    size = total(message["usage"])
    assert SANITIZED or 20000 <= size <= 32000, size
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "A mill."},
                                          {"type": "text", "text": "<system-reminder>\nBe brief.\n</system-reminder>"}]}

    def turn(key, *content):
        body = {**agent_requests.claude_code(2), "messages": [*first["messages"], {"role": "assistant", "content": list(content)}, result]}
        found = check_messages_stream(post(server, "/v1/messages?beta=true", body, key, **agent_requests.CLAUDE_CODE_HEADERS)[2])
        assert [block.get("text") for block in found["content"]] == [ANSWER] and found["stop_reason"] == "end_turn", found
        return found["usage"]

    usage = turn(ALICE, thinking, use)
    whole = size + message["usage"]["output_tokens"]
    assert usage["cache_read_input_tokens"] >= whole - 63, (usage, whole)
    # Dropped reasoning comes back: the prompt is as long, and what was evaluated is found. Without its key it does not.
    for content in ((use,), ({**thinking, "thinking": ""}, use), ({**thinking, "thinking": ""}, {**use, "id": "toolu_1"})):
        again = turn(ALICE, *content)
        assert total(again) == total(usage) and again["cache_read_input_tokens"] >= whole - 63, (again, usage)
    assert total(turn(ALICE, {**use, "id": "toolu_1"})) < total(usage)
    other = turn(BOB, use)
    assert total(other) < total(usage) and other["cache_read_input_tokens"] == 0, other
    print(f"Claude Code: {size} tokens, then {usage['cache_read_input_tokens']} of {total(usage)} cached")


def check_codex(server):
    first = agent_requests.codex()
    status, _, events = post(server, "/v1/responses", first)
    assert status == 200, events
    response = check_responses_stream(events)
    reasoning, call = response["output"]
    assert reasoning["content"][0]["text"] == REASONING and json.loads(call["arguments"]) == INPUT
    size = response["usage"]["input_tokens"]
    assert SANITIZED or 20000 <= size <= 32000, size
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "A mill."}

    def turn(key, *items):
        found = check_responses_stream(post(server, "/v1/responses", {**first, "input": [*first["input"], *items, result]}, key)[2])
        assert found["output"][0]["content"][0]["text"] == ANSWER and found["status"] == "completed", found
        return found["usage"]

    usage = turn(ALICE, reasoning, call)
    cached, whole = usage["input_tokens_details"]["cached_tokens"], size + response["usage"]["output_tokens"]
    assert cached >= whole - 63, (usage, whole)
    kept = {name: reasoning[name] for name in ("type", "summary", "encrypted_content")}  # what the agent sends back
    bare = {name: call[name] for name in ("type", "name", "arguments", "call_id")}
    for items in ((kept, bare), (bare,), ({"type": "reasoning", "id": reasoning["id"], "summary": []}, bare)):
        again = turn(ALICE, *items)
        assert again["input_tokens"] == usage["input_tokens"] and again["input_tokens_details"]["cached_tokens"] >= whole - 63, (again, usage)
    other = turn(BOB, bare)
    assert other["input_tokens"] < usage["input_tokens"] and other["input_tokens_details"]["cached_tokens"] == 0, other
    print(f"Codex: {size} tokens, then {cached} of {usage['input_tokens']} cached")


# ---- Errors, queues, the end ----


def check_error(found, status, kind):
    body = json.loads(found[2])
    assert found[0] == status and body["error"]["type"] == kind and body["error"]["message"] and body["type"] == "error", found
    assert body["request_id"] == found[1]["request-id"] == "req_" + found[1]["x-request-id"], found


def check_refusals(server):
    """In Anthropic's form, also of what HTTP alone decides."""
    port, key, hello = server.port, {"X-Api-Key": ALICE}, {"max_tokens": 5, "messages": ASK}
    version = {**key, "anthropic-version": "2023-06-01"}
    check_error(ask(port, "POST", "/v1/messages", hello), 401, "authentication_error")
    check_error(ask(port, "POST", "/v1/messages", hello, {"X-Api-Key": "wrong"}), 401, "authentication_error")
    assert ask(port, "POST", "/v1/messages", hello, {"Authorization": f"Bearer {BOB}"})[0] == 200
    check_error(ask(port, "GET", "/v1/messages", None, key), 405, "invalid_request_error")
    check_error(ask(port, "POST", "/v1/messages/batches", {}, key), 404, "not_found_error")
    check_error(ask(port, "POST", "/v1/nothing", {}, version), 404, "not_found_error")
    check_error(ask(port, "GET", "/v1/models/none", None, version), 404, "not_found_error")
    check_error(ask(port, "POST", "/v1/messages", hello, {**key, "Content-Type": "text/plain"}), 415, "invalid_request_error")
    check_error(ask(port, "POST", "/v1/messages", b" " * 600000, key), 413, "request_too_large")
    check_error(ask(port, "POST", "/v1/messages", b"{", key), 400, "invalid_request_error")
    check_error(ask(port, "POST", "/v1/messages", {"messages": ASK}, key), 400, "invalid_request_error")
    check_error(ask(port, "POST", "/v1/messages/count_tokens", {"messages": 5}, key), 400, "invalid_request_error")
    for path in ("/v1/messagesx", "/v1/responses/resp_1"):
        status, headers, body = ask(port, "POST", path, {}, key)
        assert status == 404 and "request-id" not in headers and json.loads(body)["error"]["code"] == "not_found", (path, body)
    client, _ = clients(server, "wrong")
    fails(anthropic.AuthenticationError, lambda: client.messages.create(model="any", **hello))


def check_memory(server):
    """Values of JSON take 80 times the size of their text: what is not read is not kept, and its memory goes back."""
    def send(n):
        body = json.dumps({"messages": ASK, "max_tokens": 1, "unknown": [{}] * n}, separators=(",", ":")).encode()
        return ask(server.port, "POST", "/v1/chat/completions", body, {"X-Api-Key": ALICE})

    before = server.resident()
    for _ in range(3):
        assert send(100000)[0] == 200
    after = server.resident()
    assert SANITIZED or after - before < 12 << 20, (before, after)
    refused = send(150000)
    assert refused[0] == 413 and b"needs more memory" in refused[2], refused


async def stream_until(connection, path, body, stop):
    """What a stream has sent when it has `stop`, or at its end."""
    await connection.send("POST", path, body)
    head = await connection.reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head, head
    data = b""
    while not stop(data) and (piece := await connection.reader.read(65536)):
        data += piece
    return data


async def check_queue(server):
    """A stream that waits has pings; one too many is refused; the end of the server ends each stream as its protocol says."""
    long = {"prompt": "a", "max_tokens": 32000, "ignore_eos": True, "stream": True}
    hello = {"max_tokens": 9, "messages": ASK, "stream": True}
    first, waiting = Connection(server.port), [Connection(server.port) for _ in range(3)]
    await stream_until(first, "/v1/completions", long, lambda data: b"data: " in data)
    bodies = (("/v1/messages", hello), ("/v1/responses", {"input": QUESTION, "stream": True}), ("/v1/chat/completions", {"messages": ASK, "stream": True}))
    begins = (lambda d: d.count(b"event: ping") == 2, lambda d: b"\r\n:\n\n" in d, lambda d: b"\r\n:\n\n" in d)
    streams = [asyncio.ensure_future(asyncio.wait_for(stream_until(c, path, body, begin), LIMIT)) for c, (path, body), begin in zip(waiting, bodies, begins)]
    while await asyncio.to_thread(server.metric, "quern_requests_waiting") < 3:
        await asyncio.sleep(0.02)
    refused = await asyncio.to_thread(ask, server.port, "POST", "/v1/messages", hello)
    check_error(refused, 429, "rate_limit_error")
    assert refused[1]["retry-after"]
    for path, body in (("/v1/messages/count_tokens", hello), ("/v1/responses/input_tokens", {"input": QUESTION}), ("/tokenize", {"content": "a"}),
                       ("/v1/chat/completions/input_tokens", {"messages": ASK}), ("/detokenize", {"tokens": [65]}), ("/apply-template", {"messages": ASK})):
        found = await asyncio.to_thread(ask, server.port, "POST", path, body)
        assert found[0] == 200, (path, found)  # they wait for nothing
    begun = await asyncio.gather(*streams)
    stop = threading.Thread(target=server.stop)
    stop.start()
    ends = [await c.reader.read() for c in (*waiting, first)]
    await asyncio.to_thread(stop.join)
    assert b"event: message_start" in begun[0] and b"response.in_progress" in begun[1], begun
    assert b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"' in ends[0], ends[0]
    assert b"event: response.failed\n" in ends[1] and b'"status":"failed"' in ends[1], ends[1]
    for end in ends[2:]:
        assert b'data: {"error":{' in end and b"[DONE]" not in end, end[-500:]
    first.close()
    for connection in waiting:
        connection.close()


def queue_in_thread(agent, failures):
    try:
        # The reference kernels are slow enough that the first stream lasts longer than the others wait for their pings. They take the time
        # that other tests leave.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        server = Server(agent, "-c", "32768", "--parallel", "1", "--max-queued", "3", "--drain", "1", "-t", "1", environment={"QN_CPU": "ref"})
        try:
            asyncio.run(check_queue(server))
        finally:
            server.process.kill()
    except BaseException as failure:
        failures.append(failure)


def main():
    demo_model, agent_model = sys.argv[1:]
    failures = []
    queue = threading.Thread(target=queue_in_thread, args=(agent_model, failures))
    queue.start()
    begin = time.monotonic()
    keys = ("--api-key", ALICE, "--api-key", BOB)
    with Server(demo_model, "-c", "512", *keys) as demo:
        check_texts(demo)
        check_structured(demo)
    with Server(agent_model, "-c", "32768", "--max-body", "500000", *keys) as agent:
        for check in (check_messages, check_responses, check_claude_code, check_codex, check_refusals, check_memory):
            check(agent)
    queue.join()
    if failures:
        raise failures[0]
    print(f"all passed in {time.monotonic() - begin:.0f} s")


main()
