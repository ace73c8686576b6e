"""Answers that a limit of tokens cuts, at every limit: what comes is the beginning of the whole answer, without a piece of a delimiter.

    check_cuts.py --lines build/tests/protocol_lines --agent tests/golden/agent.gguf --caller tests/golden/caller.gguf \
        --demo models/quern-demo.gguf [--all] [TEMPLATE ...]

Chats, Messages and Responses, as a body and as a stream, with stop strings and without, of a model that thinks and calls, and of those that are made
to call in the form of each template; of the demo model, which is slower, chats as a body alone at each third limit, unless --all is given.
"""
import argparse
import json
import subprocess

TOKENS = 130
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "maxLength": 12}, "n": {"type": "integer", "maximum": 9, "minimum": 0},
                                           "kind": {"enum": ["a<b", "</think", None]}}, "required": ["text", "n", "kind"]}
LOOK_UP = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"], "additionalProperties": False}
ASK = [{"role": "user", "content": "What is it?"}]
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


class Lines:
    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, path, body):
        self.process.stdin.write(json.dumps({"path": path, "body": json.dumps(body), "limits": {"max_tokens": TOKENS, "n_ctx": 2048}, "is_kept": True}) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        assert found["status"] == 200, (path, body, found)
        return "".join(found["pieces"])


def body_of(kind, schema, required, stop, limit, stream):
    """A greedy request with one tool."""
    limit = limit or TOKENS
    if kind == "chat":
        body = {"messages": ASK, "max_tokens": limit, "tools": [{"type": "function", "function": {"name": "look_up", "parameters": schema}}],
                "tool_choice": "required" if required else "auto", "stop": stop}
    elif kind == "messages":
        body = {"messages": ASK, "max_tokens": limit, "tools": [{"name": "look_up", "input_schema": schema}],
                "tool_choice": {"type": "any" if required else "auto"}, "stop_sequences": stop, "thinking": {"type": "adaptive"}}
    else:
        body = {"input": ASK, "max_output_tokens": limit, "tools": [{"type": "function", "name": "look_up", "parameters": schema}],
                "tool_choice": "required" if required else "auto"}
    return {**body, "temperature": 0, "stream": stream}


# ---- Answers as (reasoning, content, [(name, arguments)]) ----


def chat_of(answer):
    message = json.loads(answer)["choices"][0]["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]
    return message.get("reasoning_content", ""), message["content"] or "", calls


def chat_of_stream(answer):
    reasoning, content, calls = "", "", []
    for event in answer.split("\n\n")[:-2]:
        delta = json.loads(event[6:])["choices"][0]["delta"]
        reasoning += delta.get("reasoning_content", "")
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if "id" in call:
                calls.append((call["function"]["name"], ""))
            calls[-1] = (calls[-1][0], calls[-1][1] + call["function"]["arguments"])
    return reasoning, content, calls


def messages_of(answer):
    blocks = json.loads(answer)["content"]
    return ("".join(b["thinking"] for b in blocks if b["type"] == "thinking"), "".join(b["text"] for b in blocks if b["type"] == "text"),
            [(b["name"], json.dumps(b["input"])) for b in blocks if b["type"] == "tool_use"])


def events_of(answer):
    return [json.loads(event.split("data: ", 1)[1]) for event in answer.split("\n\n")[:-1]]


def messages_of_stream(answer):
    reasoning, content, calls = "", "", []
    for event in events_of(answer):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append((event["content_block"]["name"], ""))
        delta = event.get("delta", {})
        reasoning += delta.get("thinking", "")
        content += delta.get("text", "")
        if "partial_json" in delta:
            calls[-1] = (calls[-1][0], calls[-1][1] + delta["partial_json"])
    return reasoning, content, calls


def items_of(response):
    reasoning, content, calls = "", "", []
    for item in response["output"]:
        if item["type"] == "function_call":
            calls.append((item["name"], item["arguments"]))
        elif item["type"] == "reasoning":
            reasoning += item["content"][0]["text"]
        else:
            content += item["content"][0]["text"]
    return reasoning, content, calls


def responses_of(answer):
    return items_of(json.loads(answer))


def responses_of_stream(answer):
    """The deltas, which say the same as the response at the end."""
    events = events_of(answer)
    deltas = {kind: "".join(e["delta"] for e in events if e["type"] == f"response.{kind}.delta") for kind in ("reasoning_text", "output_text")}
    found = items_of(events[-1]["response"])
    assert (deltas["reasoning_text"], deltas["output_text"]) == found[:2], answer
    return found


READERS = {"chat": (chat_of, chat_of_stream), "messages": (messages_of, messages_of_stream), "responses": (responses_of, responses_of_stream)}


# ---- The rule ----


def is_beginning(kind, stream, part, whole):
    """Whether an answer is the beginning of another. Messages that are not streams complete the input of a call that is cut."""
    calls, all_calls = part[2], whole[2]
    if not whole[0].startswith(part[0]) or not whole[1].startswith(part[1]) or len(calls) > len(all_calls):
        return False
    if (part[1] or calls) and part[0] != whole[0] and not whole[1]:
        return False
    for index, (name, arguments) in enumerate(calls):
        if name != all_calls[index][0] or (index + 1 < len(calls) and arguments != all_calls[index][1]):
            return False
        if kind == "messages" and not stream:
            if not json.loads(arguments).items() <= json.loads(all_calls[index][1]).items():
                return False
        elif not all_calls[index][1].startswith(arguments):
            return False
    return True


def check(lines, what, schema, required, stop, has_all=True, step=1):
    """All limits of chats, of a slow model without `has_all` each third; of the others each `step`th, from another one on."""
    n = {}
    for kind, path in PATHS.items():
        for stream in (False, True):
            if not has_all and (stream or kind != "chat"):
                continue
            read = READERS[kind][stream]
            whole = read(lines.ask(path, body_of(kind, schema, required, stop, None, stream)))
            seen, n_same = [], 0
            is_first, first = kind == "chat" and not stream, 1 if has_all else 3
            for limit in range(1, TOKENS, first) if is_first else range(1 + len(n) % step, TOKENS, step):
                answer = read(lines.ask(path, body_of(kind, schema, required, stop, limit, stream)))
                assert is_beginning(kind, stream, answer, whole), f"{what}, {kind}, stream {stream}, {limit} tokens: {answer}, whole {whole}"
                seen.append(answer)
                n_same = n_same + 1 if answer == whole else 0
                if n_same * (first if is_first else step) >= 12:
                    break
                if limit <= len(n.get(("chat", False), [])) and (kind != "messages" or stream):
                    assert answer == n["chat", False][limit - 1], f"{what}, {kind}, stream {stream}, {limit} tokens: not the chat's: {answer}"
            n[kind, stream] = seen
    print(f"{what}: reasoning {len(whole[0])}, content {len(whole[1])}, calls {len(whole[2])}; {len(n['chat', False])} limits")
    return whole


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    for name in ("lines", "agent", "caller", "demo"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("templates", nargs="*")
    args = parser.parse_args()
    agent = Lines(args.lines, args.agent)
    assert check(agent, "agent, auto", LOOK_UP, False, None)[0]
    assert check(agent, "agent, required", LOOK_UP, True, None)[2]
    check(agent, "agent, stop strings", LOOK_UP, False, ["<", "look", "tool"])
    for template in args.templates:
        name = template.rsplit("/", 1)[-1]
        assert check(Lines(args.lines, args.caller, template), f"caller, {name}, required", SCHEMA, True, None, step=20)[2]
        demo = Lines(args.lines, args.demo, template)
        assert check(demo, f"demo, {name}, required", SCHEMA, True, None, args.all)[2]
        assert check(demo, f"demo, {name}, auto, stop strings", SCHEMA, False, ["ball", "</"], args.all)[1]


main()
