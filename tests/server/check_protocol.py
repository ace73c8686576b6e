"""Answers of tests/server/protocol_lines under the eyes of the official client, of JSON schemas and of rules for streams.

    check_protocol.py --lines build/tests/protocol_lines --models models/quern-demo.gguf tests/golden/caller.gguf [--random 60]

The openai package runs with strict validation over a transport that hands bodies to protocol_lines in place of a server. Exit status 2:
a package is missing.
"""
import argparse
import json
import random
import subprocess
import sys

try:
    import jsonschema
    import openai
    import pydantic

    try:
        import httpx2 as httpx  # of newer versions of openai
    except ImportError:
        import httpx
except ImportError as missing:
    print(f"check_protocol: skipped: {missing}")
    sys.exit(2)

# ---- The protocol as schemas ----

INTEGER, TEXT, NUMBER, ANY_TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}, {"type": "number"}, {"type": ["string", "null"]}


def shape(required, **optional):
    return {"type": "object", "properties": {**required, **optional}, "required": list(required), "additionalProperties": False}


def list_of(items, **more):
    return {"type": "array", "items": items, **more}


def or_null(schema):
    return {"anyOf": [schema, {"type": "null"}]}


USAGE = shape({"prompt_tokens": INTEGER, "completion_tokens": INTEGER, "total_tokens": INTEGER,
               "prompt_tokens_details": shape({"cached_tokens": INTEGER}),
               "completion_tokens_details": shape({"reasoning_tokens": INTEGER})})
TIMINGS = {"type": "object", "required": ["prompt_n", "prompt_per_second", "predicted_n", "predicted_per_second"]}
BYTES = list_of({"type": "integer", "minimum": 0, "maximum": 255})
TOP = {"token": TEXT, "logprob": {"type": "number", "maximum": 0}, "bytes": BYTES}
CHAT_LOGPROBS = shape({"content": list_of(shape({**TOP, "top_logprobs": list_of(shape(TOP), maxItems=20)})), "refusal": {"type": "null"}})
TEXT_LOGPROBS = shape({"tokens": list_of(TEXT), "token_logprobs": list_of(NUMBER), "text_offset": list_of(INTEGER),
                       "top_logprobs": list_of({"type": "object", "additionalProperties": NUMBER})})
CALL = shape({"id": {"type": "string", "pattern": "^call_"}, "type": {"const": "function"},
              "function": shape({"name": {"type": "string", "minLength": 1}, "arguments": TEXT})})
CALL_DELTA = shape({"index": INTEGER, "function": shape({"arguments": TEXT}, name=TEXT)}, id=TEXT, type={"const": "function"})
FILLED = {"type": "string", "minLength": 1}
MESSAGE = shape({"role": {"const": "assistant"}, "content": ANY_TEXT}, reasoning_content=FILLED, tool_calls=list_of(CALL, minItems=1))
DELTA = shape({}, role={"const": "assistant"}, content={"anyOf": [FILLED, {"type": "null"}]}, reasoning_content=FILLED,
              tool_calls=list_of(CALL_DELTA, minItems=1, maxItems=1))
FINISH = {"enum": ["stop", "length", "tool_calls"]}


def answer(kind, choices, id_prefix, **optional):
    return shape({"id": {"type": "string", "pattern": f"^{id_prefix}"}, "object": {"const": kind}, "created": INTEGER, "model": TEXT,
                  "system_fingerprint": TEXT, "choices": choices}, **optional)


def choice(finish, **content):
    return shape({"index": INTEGER, **content, "finish_reason": finish})


CHAT = answer("chat.completion", list_of(choice(FINISH, message=MESSAGE, logprobs=or_null(CHAT_LOGPROBS)), minItems=1), "chatcmpl-",
              usage=USAGE, timings=TIMINGS)
CHAT_CHUNK = answer("chat.completion.chunk", list_of(choice(or_null(FINISH), delta=DELTA, logprobs=or_null(CHAT_LOGPROBS)), maxItems=1),
                    "chatcmpl-", usage=or_null(USAGE), timings=TIMINGS)
COMPLETION = answer("text_completion", list_of(choice(FINISH, text=TEXT, logprobs=or_null(TEXT_LOGPROBS)), minItems=1), "cmpl-",
                    usage=USAGE, timings=TIMINGS)
COMPLETION_CHUNK = answer("text_completion", list_of(choice(or_null(FINISH), text=TEXT, logprobs=or_null(TEXT_LOGPROBS)), maxItems=1),
                          "cmpl-", usage=or_null(USAGE), timings=TIMINGS)
ERROR = shape({"error": shape({"message": FILLED, "type": FILLED, "param": ANY_TEXT, "code": ANY_TEXT}, n_prompt_tokens=INTEGER,
                              n_ctx=INTEGER)})
VALIDATORS = {}


def check_shape(value, schema, what):
    validator = VALIDATORS.setdefault(id(schema), jsonschema.Draft202012Validator(schema))
    for error in validator.iter_errors(value):
        raise AssertionError(f"{what}: {error.message} at {error.json_path} of {json.dumps(value)[:600]}")


# ---- protocol_lines ----


class Lines:
    def __init__(self, program, model):
        self.process = subprocess.Popen([program, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, path, body, **limits):
        text = body if isinstance(body, str) else json.dumps(body)
        self.process.stdin.write(json.dumps({"path": path, "body": text, "limits": limits}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"protocol_lines ended at {path} {text[:2000]}"
        found = json.loads(line)
        return found["status"], found["pieces"]

    def client(self, seen, is_strict=True):
        def handle(request):
            body = json.loads(request.content)
            status, pieces = self.ask(request.url.path, body)
            seen.append("".join(pieces))
            kind = "text/event-stream" if body.get("stream") and status == 200 else "application/json"
            return httpx.Response(status, headers={"content-type": kind}, content=(piece.encode() for piece in pieces))

        return openai.OpenAI(api_key="none", base_url="http://quern/v1", max_retries=0, _strict_response_validation=is_strict,
                             http_client=httpx.Client(transport=httpx.MockTransport(handle)))


# ---- Streams ----


def chunks_of(pieces, done="[DONE]"):
    """The objects of a stream whose pieces are whole events."""
    chunks = []
    for piece in pieces:
        assert piece.endswith("\n\n"), piece
        for event in piece[:-2].split("\n\n"):
            assert event.startswith("data: ") and "\n" not in event, event
            chunks.append(event[6:])
    assert chunks and chunks.pop() == done, pieces[-1:]
    return [json.loads(chunk) for chunk in chunks]


def join_stream(chunks, schema, is_chat, has_usage):
    """What a stream says, as the body without a stream would: (choices, usage). Checks the order of what comes."""
    choices, usage = {}, None
    for place, chunk in enumerate(chunks):
        check_shape(chunk, schema, "chunk")
        assert chunk["id"] == chunks[0]["id"] and usage is None
        assert ("usage" in chunk) == has_usage
        usage = chunk.get("usage")
        assert bool(chunk["choices"]) == (usage is None)
        for part in chunk["choices"]:
            index = part["index"]
            if index not in choices:
                assert not is_chat or index == len(choices), "choices do not begin in order"
                choices[index] = {"text": "", "reasoning": "", "calls": [], "finish": None, "tokens": [], "logprobs": False}
                if is_chat:
                    assert part["delta"] == {"role": "assistant", "content": None} and part["finish_reason"] is None
                    continue
            found = choices[index]
            assert found["finish"] is None, "a choice goes on after its end"
            found["finish"] = part["finish_reason"]
            logprobs = part["logprobs"]
            if logprobs:
                found["logprobs"] = True
                found["tokens"] += [t["token"] for t in logprobs["content"]] if is_chat else logprobs["tokens"]
            if not is_chat:
                assert part["text"] or part["finish_reason"], "an empty text"
                found["text"] += part["text"]
                continue
            delta = part["delta"]
            assert "role" not in delta, "a second role"
            assert bool(delta) == (part["finish_reason"] is None), "an empty delta, or one with the end"
            assert len(delta) <= 1
            found["text"] += delta.get("content") or ""
            found["reasoning"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(found["calls"]):
                    assert call["id"] and call["function"]["name"] and call["function"]["arguments"] == ""
                    found["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
                else:
                    assert call["index"] == len(found["calls"]) - 1 and "id" not in call and "name" not in call["function"]
                    assert call["function"]["arguments"]
                    found["calls"][-1]["arguments"] += call["function"]["arguments"]
    assert all(c["finish"] for c in choices.values()), "a choice without an end"
    assert (usage is not None) == has_usage
    return choices, usage


def join_body(body, is_chat):
    choices = {}
    for c in body["choices"]:
        message = c["message"] if is_chat else {"content": c["text"]}
        logprobs = c["logprobs"]
        tokens = ([t["token"] for t in logprobs["content"]] if is_chat else logprobs["tokens"]) if logprobs else []
        choices[c["index"]] = {"text": message["content"] or "", "reasoning": message.get("reasoning_content", ""),
                               "calls": [{"id": t["id"], "name": t["function"]["name"], "arguments": t["function"]["arguments"]}
                                         for t in message.get("tool_calls", [])],
                               "finish": c["finish_reason"], "tokens": tokens, "logprobs": logprobs is not None}
    return choices


# ---- Random bodies ----

TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": {
    "type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}}}
WORDS = ["Once upon a time", "The red ball", "Zoë, 媽 and 🤗", "\u0000 and \t", "<|im_end|>", "What is it?", "a \"quoted\" \\ line\n"]


def maybe(rng, body, chance, **fields):
    if rng.random() < chance:
        body.update({name: value() if callable(value) else value for name, value in fields.items()})


def random_common(rng, body):
    maybe(rng, body, 0.5, temperature=lambda: rng.choice([0, 0.5, 1, 2]))
    maybe(rng, body, 0.3, top_p=lambda: rng.choice([0, 0.5, 1]))
    maybe(rng, body, 0.2, top_k=lambda: rng.choice([-1, 0, 1, 40]))
    maybe(rng, body, 0.2, min_p=0.1)
    maybe(rng, body, 0.2, presence_penalty=lambda: rng.uniform(-2, 2), frequency_penalty=lambda: rng.uniform(-2, 2))
    maybe(rng, body, 0.2, repetition_penalty=1.2)
    maybe(rng, body, 0.7, seed=lambda: rng.randint(-2**63, 2**63 - 1))
    maybe(rng, body, 0.3, stop=lambda: rng.choice([".", "the", ["a", "th", "ll"], [], None]))
    maybe(rng, body, 0.2, logit_bias=lambda: {str(rng.randint(0, 255)): rng.uniform(-100, 5) for _ in range(3)})
    maybe(rng, body, 0.3, n=lambda: rng.choice([1, 2, 3]))
    maybe(rng, body, 0.2, stream_options={"include_usage": True})
    maybe(rng, body, 0.2, timings_per_token=True)
    maybe(rng, body, 0.3, model="any", user="someone", metadata={"a": 1}, an_unknown_field=[None, {}])
    maybe(rng, body, 0.1, temperature=None, stop=None, n=None, logit_bias=None, tools=None, response_format=None)
    return body


def random_chat(rng, has_tools=False):
    messages = [{"role": rng.choice(["system", "developer"]), "content": rng.choice(WORDS)}] if rng.random() < 0.3 else []
    for _ in range(rng.randint(0, 2)):
        messages += [{"role": "user", "content": rng.choice(WORDS)}, {"role": "assistant", "content": rng.choice(WORDS)}]
    text = rng.choice(WORDS)
    messages.append({"role": "user", "content": rng.choice([text, [{"type": "text", "text": text}]])})
    body = random_common(rng, {"messages": messages})
    maybe(rng, body, 0.9, max_tokens=lambda: rng.randint(1, 12))
    maybe(rng, body, 0.3, logprobs=True)
    maybe(rng, body, 0.7 if body.get("logprobs") else 0, top_logprobs=lambda: rng.randint(0, 20))
    maybe(rng, body, 0.2, response_format=lambda: rng.choice([{"type": "text"}, {"type": "json_object"}, {
        "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"enum": ["a", "b"]}}}]))
    maybe(rng, body, 0.5 if has_tools else 0, tools=[TOOL])
    maybe(rng, body, 0.2, reasoning_effort=lambda: rng.choice(["none", "low", "max"]))
    maybe(rng, body, 0.2, chat_template_kwargs={"enable_thinking": True})
    return body


def random_completion(rng, _=False):
    prompts = [rng.choice(WORDS), [rng.choice(WORDS) for _ in range(2)], [65, 66, 67], [[65, 66], [67]]]
    body = random_common(rng, {"prompt": rng.choice(prompts)})
    maybe(rng, body, 0.8, max_tokens=lambda: rng.randint(0, 12))
    maybe(rng, body, 0.4, logprobs=lambda: rng.randint(0, 20))
    maybe(rng, body, 0.3 if "logprobs" not in body else 0, echo=True)
    return body


def check_random(lines, rng, path, body, schemas):
    is_chat = "chat" in path
    what = f"{path} {json.dumps(body)}"
    status, pieces = lines.ask(path, body)
    assert status == 200, f"{what}: {status} {pieces}"
    assert len(pieces) == 1
    plain = json.loads(pieces[0])
    check_shape(plain, schemas[0], what)
    status, pieces = lines.ask(path, {**body, "stream": True})
    assert status == 200
    has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    choices, usage = join_stream(chunks_of(pieces), schemas[1], is_chat, has_usage)
    expected = join_body(plain, is_chat)
    assert choices == expected, f"{what}:\n{choices}\n{expected}"
    if has_usage:
        for of in (usage, plain["usage"]):
            of.pop("prompt_tokens_details")
        assert usage == plain["usage"], what
    assert plain["usage"]["total_tokens"] == plain["usage"]["prompt_tokens"] + plain["usage"]["completion_tokens"]


def spoil(rng, text):
    """A body with a fault, which mostly is no JSON or has a wrong type."""
    at = rng.randrange(len(text))
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text[:at] + rng.choice('{}[]",:0\\u\x01') + text[at + 1:]
    if kind == 2:
        return text[:at] + rng.choice(["-1", "1e999", "[" * 300, "99999999999999999999", '"\\ud800"', "null"]) + text[at:]
    body = json.loads(text)
    body[rng.choice(list(body))] = rng.choice([{}, [], "x", 1e300, -1, True, [[]], {"a": []}, 99999999999999999999])
    return json.dumps(body)


def run_random(lines, n, seed, has_tools=False):
    rng = random.Random(seed)
    kinds = [("/v1/chat/completions", random_chat, (CHAT, CHAT_CHUNK)), ("/v1/completions", random_completion, (COMPLETION, COMPLETION_CHUNK))]
    refused = 0
    for _ in range(n):
        for path, make, schemas in kinds:
            body = make(rng, has_tools)
            check_random(lines, rng, path, body, schemas)
            bad = spoil(rng, json.dumps({**body, "max_tokens": 2, "n": 1}))
            status, pieces = lines.ask(path, bad)
            assert status in (200, 400), f"{status} of {bad}"
            if status == 400:
                refused += 1
                check_shape(json.loads("".join(pieces)), ERROR, bad)
    print(f"{2 * n} random bodies, and {refused} of {2 * n} spoilt ones refused")


# ---- The client ----

ASK = [{"role": "user", "content": "What is it?"}]


def check_client_chats(caller, demo):
    seen = []
    client = caller.client(seen)
    found = client.chat.completions.create(model="any", messages=ASK, tools=[TOOL], n=2, logprobs=True, top_logprobs=3)
    assert [c.index for c in found.choices] == [0, 1] and found.choices[0].finish_reason == "tool_calls"
    call = found.choices[0].message.tool_calls[0]
    assert call.function.name == "look_up" and json.loads(call.function.arguments) == {"text": 'a "quern"', "n": 2}
    assert found.choices[0].message.content is None and found.usage.completion_tokens_details.reasoning_tokens == 6
    assert len(found.choices[0].logprobs.content[0].top_logprobs) == 3
    turn = [*ASK, found.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "A mill."}]
    assert client.chat.completions.create(model="any", messages=turn, tools=[TOOL]).choices[0].message.tool_calls
    with client.chat.completions.stream(model="any", messages=ASK, tools=[TOOL], n=2, stream_options={"include_usage": True}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds and final.usage.completion_tokens == found.usage.completion_tokens
    assert [c.message.tool_calls[0].function.arguments for c in final.choices] == [call.function.arguments] * 2

    number = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["n"]}
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": number, "strict": True}},
             {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]
    for choice in ("auto", "required", {"type": "function", "function": {"name": "read"}}):
        for is_parallel in (True, False):
            body = {"messages": ASK, "tools": tools, "tool_choice": choice, "parallel_tool_calls": is_parallel}
            calls = client.chat.completions.create(model="any", **body).choices[0].message.tool_calls
            assert calls and (is_parallel or len(calls) == 1), (body, calls)
            for call in calls:
                arguments = json.loads(call.function.arguments)
                assert arguments == {} if call.function.name == "read" else choice in ("auto", "required") and 10 <= arguments["n"] <= 99

    class Answer(pydantic.BaseModel):
        is_red: bool

    client = demo.client(seen)
    parsed = client.chat.completions.parse(model="any", messages=ASK, response_format=Answer, temperature=0)
    assert parsed.choices[0].message.parsed.is_red in (True, False)
    with client.chat.completions.stream(model="any", messages=ASK, response_format=Answer, temperature=0) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    return seen


def check_client_texts(demo):
    seen = []
    client = demo.client(seen)
    found = client.completions.create(model="any", prompt=["Once", "Then"], n=2, max_tokens=4, logprobs=2, seed=5)
    assert [c.index for c in found.choices] == [0, 1, 2, 3] and all(len(c.logprobs.tokens) == 4 for c in found.choices)
    alone = client.completions.create(model="any", prompt="Then", n=2, max_tokens=4, seed=5)
    assert [c.text for c in alone.choices] == [c.text for c in found.choices[2:]]
    # The client's type has no null for a finish_reason, which OpenAI itself sends in these streams.
    lenient = demo.client(seen, is_strict=False)
    parts = list(lenient.completions.create(model="any", prompt="Then", max_tokens=4, seed=5, stream=True))
    assert "".join(p.choices[0].text for p in parts) == alone.choices[0].text
    for body, param in (({"prompt": "a", "temperature": 3}, "temperature"), ({"prompt": 7}, "prompt"), ({"prompt": "a", "suffix": 5}, "suffix")):
        try:
            client.completions.create(model="any", **body)
            raise AssertionError(f"{body} was taken")
        except openai.BadRequestError as error:
            assert error.param == param and error.status_code == 400, error
    try:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "word " * 600}])
        raise AssertionError("too long a prompt was taken")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and error.body["n_ctx"] == 512 and error.body["n_prompt_tokens"] > 512


# ---- llama-server's ----


def check_llama(demo):
    def ask(path, body):
        status, pieces = demo.ask(path, body)
        return status, json.loads("".join(pieces))

    status, tokens = ask("/tokenize", {"content": "Once upon é"})
    assert status == 200 and ask("/detokenize", tokens)[1] == {"content": "Once upon é", "prompt": "Once upon é"}
    pieces = ask("/tokenize", {"content": "é媽", "with_pieces": True})[1]["tokens"]
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert joined.decode() == "é媽"
    assert "What is it?" in ask("/apply-template", {"messages": ASK})[1]["prompt"]
    assert ask("/apply-template", {"messages": 5})[0] == 400 and ask("/tokenize", {})[0] == 400
    assert ask("/detokenize", {"tokens": [-1]})[0] == 400 and ask("/detokenize", {"tokens": [99999999]})[0] == 400
    body = {"prompt": "Once", "n_predict": 8, "temperature": 0, "n_probs": 10, "return_tokens": True}
    status, found = ask("/completion", body)
    assert status == 200 and found["stop_type"] == "limit" and len(found["completion_probabilities"]) == 8 == len(found["tokens"])
    assert found["timings"]["predicted_n"] == 8 and found["generation_settings"]["n_predict"] == 8 and found["truncated"] is False
    stream = demo.ask("/completion", {**body, "stream": True})[1]
    parts = [json.loads(piece[6:]) for piece in stream]
    assert "".join(p["content"] for p in parts) == found["content"] and [p["stop"] for p in parts] == [False] * (len(parts) - 1) + [True]
    assert sum((p["tokens"] for p in parts), []) == found["tokens"]
    two = ask("/completion", {"prompt": [[65, 66], [65, 66], ["x"]], "n_predict": 2, "temperature": 0})[1]
    assert two[0]["content"] == two[1]["content"] and len(two) == 3
    assert ask("/completion", {"prompt": [65, "Once", 66], "n_predict": 1})[0] == 200
    in_object = ask("/completion", {**body, "prompt": [{"prompt_string": "Once", "multimodal_data": []}]})[1]
    assert in_object["content"] == found["content"]
    assert ask("/completion", {**body, "prompt": {"prompt_string": "Once", "multimodal_data": ["AA=="]}})[0] == 400
    chosen = ask("/completion", {**body, "response_fields": ["content", "generation_settings/n_predict"]})[1]
    assert chosen == {"content": found["content"], "generation_settings/n_predict": 8}
    word = found["content"].split()[0]
    for bias in ([[word, False], [" " + word, -100]], {word: -100, " " + word: -100}):
        assert ask("/completion", {**body, "logit_bias": bias})[1]["content"] != found["content"]
    ends = ask("/completion", {**body, "ignore_eos": True})[1]["generation_settings"]["logit_bias"]
    assert ends and all(e["bias"] is None for e in ends) and found["generation_settings"]["logit_bias"] == []
    status, found = ask("/completion", {"prompt": "Once", "n_predict": -1, "ignore_eos": True})
    assert found["timings"]["predicted_n"] == 64  # the server's own limit
    after = ask("/completion", {"prompt": "a", "n_predict": 3, "n_probs": 2, "post_sampling_probs": True, "top_k": 2})[1]["completion_probabilities"]
    assert len(after) == 3 and all(sum(top["prob"] for top in entry["top_probs"]) > 0.999 and "logprob" not in entry for entry in after)


def check_formats(demo):
    def ask(**fields):
        status, pieces = demo.ask("/v1/chat/completions", {"messages": ASK, "max_tokens": 10, "temperature": 0, **fields})
        found = json.loads("".join(pieces))
        return status, found["choices"][0]["message"]["content"] if status == 200 else found["error"]

    assert ask(response_format={"type": "json_object", "schema": {"const": "42"}}) == (200, '"42"')
    assert ask(response_format={"type": "json_schema", "json_schema": {"schema": {"const": "foo"}}}) == (200, '"foo"')
    assert ask(json_schema={"const": "42"}) == (200, '"42"') and ask(grammar='root ::= "a"{5,5}') == (200, "aaaaa")
    assert ask(response_format={"type": "json_object"})[1][0] == "{"
    for bad in ({"type": "sound"}, {"type": "json_object", "schema": 123}, {"type": "json_object", "schema": {"type": 123}},
                {"type": "json_object", "schema": {"type": "hiccup"}}, {"type": "json_schema"}, 5,
                {"type": "json_schema", "json_schema": {"strict": True, "schema": {"not": {}}}}):
        status, error = ask(response_format=bad)
        assert status == 400 and error["param"].startswith("response_format"), (bad, status, error)
    assert ask(grammar="root ::= (")[1]["param"] == "grammar" and ask(grammar="x", json_schema={})[0] == 400


def check_formats_with_tools(caller):
    """The answer is calls, or content of the format: the model, which calls, decides unless tool_choice does."""
    number = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"type": "integer", "minimum": 10, "maximum": 99}}}
    for choice in ("auto", "required", "none"):
        for path, field in (("/v1/chat/completions", {"response_format": number, "messages": ASK}),
                            ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": number["json_schema"]["schema"]}}, "messages": ASK, "max_tokens": 60}),
                            ("/v1/responses", {"text": {"format": {"type": "json_schema", **number["json_schema"]}}, "input": ASK})):
            function = TOOL["function"]
            tools = {"/v1/messages": {"name": "look_up", "input_schema": function["parameters"]}, "/v1/responses": {"type": "function", **function}}
            given = {"type": {"required": "any"}.get(choice, choice)} if path == "/v1/messages" else choice
            status, pieces = caller.ask(path, {**field, "tools": [tools.get(path, TOOL)], "tool_choice": given})
            found = json.loads("".join(pieces))
            assert status == 200, found
            if "choices" in found:
                message = found["choices"][0]["message"]
                texts, has_call = [message["content"]] if message["content"] else [], "tool_calls" in message
            else:
                items = found.get("content") or found["output"]
                texts = [text for item in items if item["type"] in ("text", "message") for text in [item.get("text") or item["content"][0]["text"]]]
                has_call = any(item["type"] in ("tool_use", "function_call") for item in items)
            assert has_call != bool(texts) and all(10 <= json.loads(text) <= 99 for text in texts), found
            assert has_call if choice == "required" or (choice == "auto" and path == "/v1/chat/completions") else choice == "auto" or texts, found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", required=True)
    parser.add_argument("--models", nargs=2, required=True, metavar=("DEMO", "CALLER"))
    parser.add_argument("--random", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    demo, caller = (Lines(args.lines, model) for model in args.models)
    check_llama(demo)
    check_formats(demo)
    check_formats_with_tools(caller)
    check_client_texts(demo)
    check_client_chats(caller, demo)
    run_random(demo, args.random, args.seed)
    run_random(caller, args.random, args.seed + 1, True)
    for lines in (demo, caller):
        lines.process.stdin.close()
        assert lines.process.wait(60) == 0, "protocol_lines failed at its end"
    print("all passed")


if __name__ == "__main__":
    main()
