"""Fields of other servers, by tests/server/protocol_lines: what they do, or that they are refused by name.

    check_fields.py --lines build/tests/protocol_lines --agent tests/golden/agent.gguf --demo models/quern-demo.gguf [TEMPLATE ...]
"""
import argparse
import json
import re
import subprocess

CHAT, TEXT, LLAMA, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages", "/v1/responses"
ASK = [{"role": "user", "content": "Tell me a story"}]
PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}, "required": ["text", "n"], "additionalProperties": False}
FUNCTION = {"name": "look_up", "parameters": PARAMETERS}
BODIES = {CHAT: {"messages": ASK, "max_tokens": 60}, TEXT: {"prompt": "Once upon a time", "max_tokens": 60}, LLAMA: {"prompt": "Once upon a time", "n_predict": 60},
          MESSAGES: {"messages": ASK, "max_tokens": 60}, RESPONSES: {"input": ASK, "max_output_tokens": 60}}


class Lines:
    def __init__(self, *command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, path, body, status=200):
        self.process.stdin.write(json.dumps({"path": path, "body": json.dumps(body), "limits": {"max_tokens": 200, "n_ctx": 2048}}) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        assert found["status"] == status, (path, body, found)
        return "".join(found["pieces"])

    def get(self, path, body):
        return json.loads(self.ask(path, body))

    def refused(self, path, body, field, part=""):
        error = json.loads(self.ask(path, body, 400))["error"]
        assert part in error["message"], (body, error)
        assert path == MESSAGES or error["param"].startswith(field), (body, error)
        assert field in error["message"] or path == MESSAGES or error["param"].startswith(field), (body, error)


def chunks_of(text):
    return [json.loads(event[6:]) for event in text.split("\n\n") if event.startswith("data: {")]


def events_of(text):
    return [json.loads(event.split("data: ", 1)[1]) for event in text.split("\n\n") if event]


def text_of(path, answer):
    """The content of an answer that is no stream."""
    if path == CHAT:
        return answer["choices"][0]["message"]["content"]
    if path == TEXT:
        return answer["choices"][0]["text"]
    if path == LLAMA:
        return answer["content"]
    if path == MESSAGES:
        return "".join(block["text"] for block in answer["content"])
    return "".join(item["content"][0]["text"] for item in answer["output"] if item["type"] == "message")


# ---- The last message continued ----


def check_continued(lines, what):
    def prompt(content, **fields):
        message = {"role": "assistant", "content": content, **fields.pop("message", {})}
        return lines.get("/apply-template", {"messages": [*ASK, message], "continue_final_message": True, **fields})["prompt"]

    for content in ("Once upon a", "Once upon ", "a\n\n", "é 世", "", "qn9continue and qn9", "It's {{ x }} <b>"):
        text = prompt(content)
        assert text.endswith(content), (what, text)
        assert not re.search(r"<think>\s*$", text.removesuffix(content)), (what, text)
        assert prompt(content, add_generation_prompt=False) == text
    parts = [{"type": "text", "text": "Once "}, {"type": "text", "text": "upon a"}]
    assert prompt(parts).endswith("upon a")
    assert prompt("So", message={"reasoning_content": "Hm."}).endswith("So")
    closed = lines.get("/apply-template", {"messages": [*ASK, {"role": "assistant", "content": "So"}], "add_generation_prompt": False})["prompt"]
    opened = lines.get("/apply-template", {"messages": [*ASK, {"role": "assistant", "content": "So"}]})["prompt"]
    assert opened.startswith(closed) and len(opened) > len(closed) and not closed.endswith("So")

    call = {"role": "assistant", "content": "So", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    for path in (CHAT, "/apply-template", CHAT + "/input_tokens"):
        lines.refused(path, {"messages": [*ASK, {"role": "assistant", "content": "So"}], "continue_final_message": True, "add_generation_prompt": True},
                      "add_generation_prompt", "continue_final_message")
        lines.refused(path, {"messages": ASK, "continue_final_message": True}, "messages", "expected 'assistant'")
        lines.refused(path, {"messages": [*ASK, call], "continue_final_message": True}, "messages", "tool calls")
        lines.refused(path, {"messages": ASK, "continue_final_message": 1}, "continue_final_message")
        lines.refused(path, {"messages": ASK, "add_generation_prompt": "no"}, "add_generation_prompt")


def check_continuations(lines):
    """The answer is what follows the prompt's text, by every protocol that continues; tokens are counted as they are sent."""
    answer = {"role": "assistant", "content": "Once upon a"}
    body = {"messages": [*ASK, answer], "max_tokens": 12, "temperature": 0}
    prompt = lines.get("/apply-template", {**body, "continue_final_message": True})["prompt"]
    wanted = lines.get(TEXT, {"prompt": prompt, "max_tokens": 12, "temperature": 0})
    text, n = text_of(TEXT, wanted), wanted["usage"]["prompt_tokens"]
    assert text.startswith(" time")
    chat = lines.get(CHAT, {**body, "continue_final_message": True})
    assert text_of(CHAT, chat) == text and chat["usage"]["prompt_tokens"] == n
    stream = chunks_of(lines.ask(CHAT, {**body, "continue_final_message": True, "stream": True}))
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in stream) == text
    message = lines.get(MESSAGES, body)
    assert text_of(MESSAGES, message) == text and message["usage"]["input_tokens"] == n
    assert lines.get(MESSAGES + "/count_tokens", body)["input_tokens"] == n
    assert lines.get(CHAT + "/input_tokens", {**body, "continue_final_message": True})["input_tokens"] == n
    new = lines.get(CHAT, body)["usage"]["prompt_tokens"]
    assert new > n and lines.get(RESPONSES, {"input": body["messages"], "max_output_tokens": 4})["usage"]["input_tokens"] == new
    lines.ask(MESSAGES, {"messages": [*ASK, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}], "max_tokens": 4}, 400)
    chosen = lines.get(CHAT, {**body, "continue_final_message": True, "guided_choice": [" dog", " cat"]})
    assert text_of(CHAT, chosen) in (" dog", " cat"), chosen


def check_templates(lines_of):
    upper = "{% for m in messages %}[{{ m.role }}]{{ m.content | upper }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    trims = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    body = {"messages": [*ASK, {"role": "assistant", "content": " Once upon "}], "continue_final_message": True}
    lines_of(upper).refused("/apply-template", body, "messages", "cannot be found")
    lines_of(trims.replace("trim", "replace('upon', 'on')")).refused("/apply-template", body, "messages", "cannot be found")
    assert lines_of(trims).get("/apply-template", body)["prompt"] == "[user]Tell me a story;[assistant]Once upon "


# ---- functions and function_call ----


def check_functions(lines):
    body = {"messages": [{"role": "user", "content": "What is it?"}], "functions": [FUNCTION], "temperature": 0}
    answer = lines.get(CHAT, body)["choices"][0]
    call = answer["message"]["function_call"]
    assert answer["finish_reason"] == "function_call" and "tool_calls" not in answer["message"] and answer["message"]["content"] is None
    assert call["name"] == "look_up" and set(call) == {"name", "arguments"} and set(json.loads(call["arguments"])) == {"text", "n"}
    chunks = [c["choices"][0] for c in chunks_of(lines.ask(CHAT, {**body, "stream": True}))]
    calls = [c["delta"]["function_call"] for c in chunks if "function_call" in c["delta"]]
    assert calls[0] == {"name": "look_up", "arguments": ""} and all(set(c) == {"arguments"} for c in calls[1:])
    assert "".join(c["arguments"] for c in calls) == call["arguments"] and chunks[-1]["finish_reason"] == "function_call"
    assert not any("tool_calls" in c["delta"] for c in chunks)

    tools = {"tools": [{"type": "function", "function": FUNCTION}]}
    same = lines.get(CHAT, {"messages": body["messages"], "temperature": 0, **tools})["choices"][0]
    assert same["message"]["tool_calls"][0]["function"] == call and same["finish_reason"] == "tool_calls"
    past = [*body["messages"], {"role": "assistant", "content": None, "function_call": call}, {"role": "function", "name": "look_up", "content": "a mill"}]
    newer = [*body["messages"], {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
             {"role": "tool", "tool_call_id": "1", "content": "a mill"}]
    assert lines.get("/apply-template", {**body, "messages": past}) == lines.get("/apply-template", {"messages": newer, **tools})
    found = lines.get(CHAT, {**body, "messages": past})["choices"][0]
    assert found["finish_reason"] == "stop" and found["message"]["content"] and "function_call" not in found["message"]
    forced = lines.get(CHAT, {**body, "function_call": {"name": "look_up"}})["choices"][0]
    assert forced["message"]["function_call"]["name"] == "look_up"
    none = lines.get(CHAT, {**body, "function_call": "none"})["choices"][0]
    assert "function_call" not in none["message"]
    cut = lines.get(CHAT, {**body, "max_tokens": 4})["choices"][0]
    assert cut["finish_reason"] == "length" and cut["message"]["content"] == "" and "function_call" not in cut["message"]

    lines.refused(CHAT, {**body, **tools}, "functions", "tools")
    lines.refused(CHAT, {**body, "tool_choice": "auto"}, "functions", "tool_choice")
    lines.refused(CHAT, {"messages": body["messages"], "function_call": {"name": "look_up"}}, "function_call", "functions")
    lines.refused(CHAT, {**body, "function_call": "look_up"}, "function_call", "is \"look_up\"")
    lines.refused(CHAT, {**body, "function_call": {"name": "other"}}, "function_call")
    lines.refused(CHAT, {**body, "functions": [{}]}, "functions[0]", "expected {\"name\": ...}")
    lines.refused(CHAT, {**body, "functions": [{"type": "function", "function": FUNCTION}]}, "functions[0]", "expected {\"name\": ...}")
    lines.refused(CHAT, {**body, "functions": {}}, "functions")
    lines.refused(CHAT, {"messages": body["messages"], **tools, "tool_choice": {"type": "function", "name": "look_up"}}, "tool_choice", "names no function")
    lines.refused(CHAT, {**body, "messages": [*ASK, {"role": "function", "content": "x"}]}, "messages[1].name")
    lines.refused(CHAT, {**body, "messages": [{**past[1], "tool_calls": newer[1]["tool_calls"]}]}, "messages[0].function_call")
    lines.get(CHAT, {"messages": ASK, "functions": None, "function_call": None, "max_tokens": 1})


# ---- Log probabilities of Responses ----


def check_logprobs(lines, chat_has_same):
    body = {"input": ASK, "max_output_tokens": 20, "temperature": 0, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = lines.get(RESPONSES, body)
    part = next(item for item in response["output"] if item["type"] == "message")["content"][0]
    entries = part["logprobs"]
    assert "".join(entry["token"] for entry in entries if "\\x" not in entry["token"]) in part["text"] and entries
    assert all(len(e["top_logprobs"]) == 2 and e["logprob"] <= 0 and isinstance(e["bytes"], list) for e in entries)
    assert b"".join(bytes(e["bytes"]) for e in entries) == part["text"].encode(), part
    assert response["top_logprobs"] == 2
    if chat_has_same:
        chat = lines.get(CHAT, {"messages": ASK, "max_tokens": 20, "temperature": 0, "logprobs": True, "top_logprobs": 2})
        assert chat["choices"][0]["logprobs"]["content"] == entries
    events = events_of(lines.ask(RESPONSES, {**body, "stream": True}))
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert sum((e["logprobs"] for e in deltas), []) == entries
    assert [e["logprobs"] for e in events if e["type"] == "response.output_text.done"] == [entries]
    assert [e["part"]["logprobs"] for e in events if e["type"] == "response.content_part.done" and e["part"]["type"] == "output_text"] == [entries]
    assert all(e["part"]["logprobs"] == [] for e in events if e["type"] == "response.content_part.added" and e["part"]["type"] == "output_text")
    message = next(item for item in events[-1]["response"]["output"] if item["type"] == "message")
    assert message["content"][0]["logprobs"] == entries

    least = lines.get(RESPONSES, {**body, "top_logprobs": None})["output"][-1]["content"][0]["logprobs"]
    assert [e["logprob"] for e in least] == [e["logprob"] for e in entries] and all(e["top_logprobs"] == [] for e in least)
    assert lines.get(RESPONSES, {**body, "include": None})["output"][-1]["content"][0]["logprobs"] == entries
    assert lines.get(RESPONSES, {**body, "include": ["reasoning.encrypted_content"], "top_logprobs": 0})["output"][-1]["content"][0]["logprobs"] == []
    for field, value in (("include", ["message.output_text"]), ("include", "message.output_text.logprobs"), ("include", [1]), ("top_logprobs", 21)):
        lines.refused(RESPONSES, {**body, field: value}, field)


# ---- What constrains ----

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}
JSON = re.compile(r'\{"a": [12], "b": (true|false)\}')
CHOICES = ["yes", "no \"way\"\n\\", "no", "né 世"]


def constraints():
    """(fields, whether a text is right)"""
    def fits(text):
        return JSON.fullmatch(text)

    def is_choice(text):
        return text in CHOICES

    def is_date(text):
        return re.fullmatch(r"\d{4}-[01]\d", text)

    gbnf = 'root ::= "red " [0-9] ("x" | "y")'

    def is_red(text):
        return re.fullmatch(r"red [0-9][xy]", text)

    yield {"guided_json": SCHEMA}, fits
    yield {"guided_json": json.dumps(SCHEMA)}, fits
    yield {"json_schema": json.dumps(SCHEMA)}, fits
    yield {"json_schema": SCHEMA}, fits
    yield {"structured_outputs": {"json": SCHEMA}}, fits
    yield {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None, "disable_fallback": True}}, fits
    yield {"guided_regex": r"\d{4}-[01]\d"}, is_date
    yield {"regex": r"\d{4}-[01]\d"}, is_date
    yield {"structured_outputs": {"regex": r"\d{4}-[01]\d"}}, is_date
    yield {"guided_choice": CHOICES, "guided_decoding_backend": "outlines"}, is_choice
    yield {"structured_outputs": {"choice": CHOICES}}, is_choice
    yield {"guided_grammar": gbnf}, is_red
    yield {"ebnf": gbnf}, is_red
    yield {"grammar": gbnf}, is_red
    yield {"structured_outputs": {"grammar": gbnf}}, is_red
    yield {"structured_outputs": {"json_object": True}}, lambda text: text.startswith("{")


def check_constraints(lines):
    seen = set()
    for path, body in BODIES.items():
        for fields, is_right in constraints():
            answer = lines.get(path, {**body, **fields, "temperature": 1})
            assert is_right(text_of(path, answer)), (path, fields, answer)
    for seed in range(12):
        seen.add(text_of(TEXT, lines.get(TEXT, {**BODIES[TEXT], "guided_choice": ["a", "ab", "b"], "temperature": 2, "seed": seed})))
    assert len(seen) > 1 and seen <= {"a", "ab", "b"}, seen
    chunks = chunks_of(lines.ask(CHAT, {**BODIES[CHAT], "guided_regex": "[ab]{5}", "stream": True}))
    assert re.fullmatch("[ab]{5}", "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks))

    all_fields = [({"response_format": {"type": "json_object"}}, "response_format"), ({"json_schema": SCHEMA}, "json_schema"), ({"grammar": 'root ::= "a"'}, "grammar"),
                  ({"guided_json": SCHEMA}, "guided_json"), ({"guided_regex": "a"}, "guided_regex"), ({"guided_choice": ["a"]}, "guided_choice"),
                  ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"), ({"structured_outputs": {"regex": "a"}}, "structured_outputs"), ({"regex": "a"}, "regex"),
                  ({"ebnf": 'root ::= "a"'}, "ebnf")]
    for path in (CHAT, TEXT, LLAMA):
        for first, _ in all_fields:
            for second, name in all_fields:
                if first is not second:
                    error = json.loads(lines.ask(path, {**BODIES[path], **first, **second}, 400))["error"]
                    assert "expected one of them" in error["message"] and next(iter(first)) in error["message"] and name in error["message"], error
    lines.refused(RESPONSES, {**BODIES[RESPONSES], "text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex", "text.format")
    tools = {"tools": [{"type": "function", "function": FUNCTION}]}
    for fields in ({"guided_regex": "a"}, {"guided_choice": ["a"]}, {"ebnf": 'root ::= "a"'}):
        error = json.loads(lines.ask(CHAT, {**BODIES[CHAT], **fields, **tools}, 400))["error"]
        assert error["param"] == next(iter(fields)) or "tools" in error["message"], error
    wrong = [({"guided_choice": []}, "guided_choice"), ({"guided_choice": [1]}, "guided_choice"), ({"guided_choice": "a"}, "guided_choice"),
             ({"guided_choice": ["\0"]}, "guided_choice"), ({"guided_regex": ""}, "guided_regex"), ({"guided_regex": "("}, "guided_regex"), ({"ebnf": 5}, "ebnf"),
             ({"ebnf": "start: \"a\""}, "ebnf"), ({"guided_json": "{"}, "guided_json"), ({"guided_json": 5}, "guided_json"), ({"structured_outputs": {}}, "structured_outputs"),
             ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"), ({"structured_outputs": {"lark": "a"}}, "structured_outputs"),
             ({"structured_outputs": {"structural_tag": "a"}}, "structured_outputs"), ({"structured_outputs": "a"}, "structured_outputs"),
             ({"structured_outputs": {"whitespace_pattern": "a"}}, "structured_outputs"), ({"guided_whitespace_pattern": "a"}, "guided_whitespace_pattern")]
    for path in (CHAT, TEXT, LLAMA, RESPONSES):
        for fields, name in wrong:
            lines.refused(path, {**BODIES[path], **fields}, name)
    lines.ask(MESSAGES, {**BODIES[MESSAGES], "guided_choice": []}, 400)


# ---- Where answers end ----


LIMITS = {CHAT: "max_tokens", TEXT: "max_tokens", LLAMA: "n_predict", MESSAGES: "max_tokens", RESPONSES: "max_output_tokens"}


def tokens_of(path, answer):
    if path == LLAMA:
        return answer["tokens_predicted"]
    usage = answer["usage"]
    return usage["completion_tokens" if path in (CHAT, TEXT) else "output_tokens"]


def check_ends(lines):
    whole = lines.get(LLAMA, {**BODIES[LLAMA], "temperature": 0, "return_tokens": True})
    ids = whole["tokens"]
    at = next(i for i in range(5, 40) if ids.index(ids[i]) == i and i < len(ids) - 3)
    first = lines.get(LLAMA, {**BODIES[LLAMA], "temperature": 0, "return_tokens": True, "n_predict": at})["content"]
    for extra in ({}, {"ignore_eos": True}, {"n_probs": 2}):
        short = lines.get(LLAMA, {**BODIES[LLAMA], "temperature": 0, "return_tokens": True, "stop_token_ids": [ids[at], 5], **extra})
        assert short["content"] == first and short["tokens"] == ids[:at] and tokens_of(LLAMA, short) == at + 1, (at, short)
        assert len(short.get("completion_probabilities", ids[:at])) == at, short
    longer = lines.get(LLAMA, {**BODIES[LLAMA], "temperature": 0, "return_tokens": True, "stop_token_ids": [ids[at]], "min_tokens": at + 5})
    assert longer["tokens"][:at] == ids[:at] and ids[at] not in longer["tokens"] and tokens_of(LLAMA, longer) > at + 5, longer
    for path in (CHAT, TEXT, LLAMA):
        body = {**BODIES[path], "temperature": 0, "stop": ["e", "a", "o"]}
        short, longer = lines.get(path, body), lines.get(path, {**body, "min_tokens": 12})
        assert tokens_of(path, short) < 12 < tokens_of(path, longer) and len(text_of(path, longer)) > len(text_of(path, short)), (short, longer)
    for path, body in BODIES.items():
        # A grammar that can end later does; one that can only end ends.
        answer = lines.get(path, {**body, "regex": "[ab]{3,}", "temperature": 1, "min_tokens": 30})
        assert len(text_of(path, answer)) >= 30 and tokens_of(path, answer) > 30, answer
        answer = lines.get(path, {**body, "guided_choice": ["yes", "no"], "min_tokens": 30})
        assert text_of(path, answer) in ("yes", "no") and tokens_of(path, answer) < 10, answer
        stream = lines.ask(path, {**body, "guided_choice": ["yes", "no"], "min_tokens": 30, "stream": True})
        assert stream, path
        lines.ask(path, {**body, "min_tokens": 0, "stop_token_ids": []})
        lines.ask(path, {**body, "min_tokens": 60, "stop_token_ids": [0] * 64})
        lines.refused(path, {**body, "min_tokens": 61}, "min_tokens", "61")
        for wrong, part in ((-1, "-1"), (1.5, ""), ("1", ""), (2**31, "")):
            lines.refused(path, {**body, "min_tokens": wrong}, "min_tokens", part)
        for wrong, part in (([0] * 65, "65"), ([4096], "4096"), ([0, -1], "-1"), ([2**31], str(2**31)), ([1.5], ""), (["a"], ""), ([[1]], ""), (5, ""), ("5", ""), ({"5": 1}, "")):
            lines.refused(path, {**body, "stop_token_ids": wrong}, "stop_token_ids", part)
    # The server's own limit makes no body wrong: it is 200 here.
    answer = lines.get(TEXT, {"prompt": "Once upon a time", "max_tokens": 300, "min_tokens": 250, "temperature": 0})
    assert tokens_of(TEXT, answer) == 200 and answer["choices"][0]["finish_reason"] == "length", answer


def check_filters(lines):
    """Filters that leave one token give the greedy answer at any temperature; XTC takes the most likely ones away."""
    greedy = lines.get(LLAMA, {**BODIES[LLAMA], "temperature": 0, "n_predict": 12})["content"]
    wild = {**BODIES[LLAMA], "temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "n_predict": 12}
    assert lines.get(LLAMA, {**wild, "top_n_sigma": 1e-6, "seed": 3})["content"] == greedy
    assert lines.get(LLAMA, {**wild, "seed": 3})["content"] != greedy
    found = lines.get(LLAMA, {**wild, "xtc_probability": 1, "xtc_threshold": 0.05, "temperature": 0.8, "seed": 3})
    settings = found["generation_settings"]
    assert found["content"] != greedy and settings["xtc_probability"] == 1 and abs(settings["xtc_threshold"] - 0.05) < 1e-6, found
    assert settings["typical_p"] == 1 and settings["top_n_sigma"] == -1, settings
    assert lines.get(LLAMA, {**wild, "typical_p": 0.2, "seed": 3})["content"] != lines.get(LLAMA, {**wild, "seed": 3})["content"]
    # The other value of a pair is the library's.
    settings = lines.get(LLAMA, {**BODIES[LLAMA], "n_predict": 1, "xtc_probability": 1, "mirostat": 2})["generation_settings"]
    assert [round(settings[name], 6) for name in ("xtc_threshold", "mirostat_tau", "mirostat_eta")] == [0.1, 5, 0.1], settings
    calm, lively = (lines.get(LLAMA, {**wild, "seed": 3, "n_predict": 60, "mirostat": 2, "mirostat_tau": tau, "mirostat_eta": 0.5})["content"] for tau in (0, 12))
    assert calm != lively and lines.get(LLAMA, {**wild, "mirostat": 2})["generation_settings"]["mirostat"] == 2
    plain = lines.get(LLAMA, {**wild, "seed": 4})["content"]
    assert plain == lines.get(LLAMA, {**wild, "seed": 4, "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "xtc_threshold": 0.2})["content"]


def check_dry(lines):
    """A prompt that repeats itself goes on so, unless DRY is on and nothing breaks the repetition."""
    defaults = {"dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":", '"', "*"]}
    prompt = "Tom and Tom and Tom and Tom and"
    # One token, and as many as it takes; a text that the prompt does not have; one that ends within a token.
    same = [{"dry_multiplier": 0}, {"dry_penalty_last_n": 0}, {"dry_penalty_last_n": 3}, {"dry_allowed_length": 1000}, {"dry_sequence_breakers": [" and"]},
            {"dry_sequence_breakers": ["?", "m and"]}, {"dry_sequence_breakers": ["Tom and"]}]
    other = [{}, {"dry_base": 0}, {"dry_sequence_breakers": []}, {"dry_sequence_breakers": None}, {"dry_sequence_breakers": ["Tom or", "and Bob"]}, {"dry_sequence_breakers": ["x" * 64] * 64}]
    for path, key in ((TEXT, "max_tokens"), (LLAMA, "n_predict")):
        body = {"prompt": prompt, key: 3, "temperature": 0}
        plain = text_of(path, lines.get(path, body))
        assert plain.startswith(" Tom"), plain
        for fields in (*same, *other):
            answer = lines.get(path, {**body, "dry_multiplier": 2, **fields})
            assert (text_of(path, answer) == plain) == (fields in same), (path, fields, answer)
            if path == LLAMA:
                given = {name: value for name, value in fields.items() if value is not None and fields != {"dry_base": 0}}
                settings = {name: answer["generation_settings"][name] for name in defaults}
                assert settings == {**defaults, "dry_multiplier": 2, **given}, (fields, settings)
    # Without it a story says the same things again.
    story = {"prompt": "Once upon a time", "n_predict": 190, "temperature": 0}
    texts = [lines.get(LLAMA, {**story, "dry_multiplier": multiplier})["content"].split() for multiplier in (0, 2)]
    longest = [max(n for n in range(1, 30) for i in range(len(text) - n) if any(text[j:j + n] == text[i:i + n] for j in range(i + 1, len(text) - n + 1))) for text in texts]
    assert longest[1] < longest[0], (longest, texts)
    for path, body in BODIES.items():
        body = {**body, LIMITS[path]: 2, "dry_multiplier": 0.8}
        for name, values, wrong in (("dry_multiplier", (0, 0.8, 1e6), (-1, 1.1e6, "1", True)), ("dry_base", (0, 0.5, 1, 1.75, 1e6), (-1, 1.1e6, "1")),
                                    ("dry_allowed_length", (0, 2, 1000), (-1, 1001, 1.5, "1")), ("dry_penalty_last_n", (-1, 0, 2**31 - 1), (-2, 2**31, 1.5)),
                                    ("dry_sequence_breakers", ([], ["\n"], ["é"], ["a"] * 64, ["x" * 64], None),
                                     ("\n", '["\\n"]', [""], ["a", 5], [["a"]], {"a": 1}, ["a"] * 65, ["x" * 65], ["é" * 33], ["a\0b"], 5))):
            for value in values:
                lines.ask(path, {**body, name: value})
            for value in wrong:
                lines.refused(path, {**body, name: value}, name)
                lines.refused(path, {**body, "dry_multiplier": 0, name: value}, name)
        lines.refused(path, {**body, "dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers", "65")
        lines.refused(path, {**body, "dry_sequence_breakers": ["a", "x" * 100]}, "dry_sequence_breakers", "100 bytes")
        many = [chr(ord("a") + i) + "".join(chr(ord("!") + at * 7 % 15) for at in range(63)) for i in range(26)]
        lines.refused(path, {**body, "dry_sequence_breakers": many}, "dry_sequence_breakers", "more than the 16384 tokens")


def check_samplers(lines):
    names = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
    for path, body in BODIES.items():
        body = {**body, LIMITS[path]: 2}
        for samplers in (names, names[::-1], [], ["top-k", "nucleus", "typical", "temp", "min-p"], "edskypmxt", "", ["adaptive_p"]):
            lines.ask(path, {**body, "samplers": samplers})
        for samplers, part in ((["top_k", "topk"], "topk"), (["mirostat"], "mirostat"), (["infill"], "infill"), ([5], ""), ([None], ""), ("kz", "z"), ("ké", ""),
                               ({"top_k": 1}, ""), (5, ""), (["top_k"] * 65, "65"), (["top_k "], "top_k "), (["TOP_K"], "TOP_K"), (["x" * 5000], "xxx")):
            lines.refused(path, {**body, "samplers": samplers}, "samplers", part)
        lines.ask(path, {**body, "samplers": None})
        for name, values, wrong in (("typical_p", (0, 0.5, 1), (1.1, -0.1, "1")), ("typ_p", (0.5,), (2,)), ("top_n_sigma", (-1, 0, 1.5), ("1", 1e7, [])),
                                    ("xtc_probability", (0, 0.5, 1), (1.5, -1, True)), ("xtc_threshold", (0, 0.1, 1), (1.5, -1, "x")),
                                    ("mirostat", (0, 2), (1, 3, 1.5)), ("mirostat_tau", (0, 5), (-1, 101)), ("mirostat_eta", (0, 0.1), (-1, 101))):
            for value in values:
                lines.ask(path, {**body, name: value})
            for value in wrong:
                lines.refused(path, {**body, name: value}, name)
        # OpenAI's bound is that of its own protocols, and of Messages, whose documentation has less.
        if path == LLAMA:
            lines.ask(path, {**body, "temperature": 2.5})
            lines.ask(path, {**body, "temperature": 1e6})
        lines.refused(path, {**body, "temperature": 1.1e6 if path == LLAMA else 2.5}, "temperature")


# ---- What is refused ----


def check_refused(lines):
    values = {"allowed_token_ids": ([1], []), "bad_words": (["a"], []), "include_stop_str_in_output": (True, False),
              "skip_special_tokens": (False, True), "use_beam_search": (True, False), "mirostat": (1, 0), "dynatemp_range": (0.5, 0), "prompt_logprobs": (1, None), "truncate_prompt_tokens": (5, None),
              "stop_regex": ("a", ""), "return_token_ids": (True, False), "logits_processors": (["a"], []),
              "guided_decoding": ({"regex": "a"}, {}), "format": ("json", ""), "extra_body": ({"guided_regex": "a"}, {})}
    of_chats = {"chat_template": ("x", None), "documents": ([{"text": "a"}], []), "echo": (True, False), "separate_reasoning": (False, True),
                "include_reasoning": (False, True), "add_special_tokens": (True, False), "web_search_options": ({}, None)}
    for path, body in BODIES.items():
        is_chat = path not in (TEXT, LLAMA)
        for name, (wrong, neutral) in {**values, **(of_chats if is_chat else {"add_special_tokens": (False, True)})}.items():
            lines.refused(path, {**body, name: wrong}, name)
            limit = {"max_output_tokens" if path == RESPONSES else "n_predict" if path == LLAMA else "max_tokens": 1}
            lines.ask(path, {**body, **limit, name: neutral})


def main():
    parser = argparse.ArgumentParser()
    for name in ("lines", "agent", "demo", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("templates", nargs="*")
    args = parser.parse_args()
    agent, demo = Lines(args.lines, args.agent), Lines(args.lines, args.demo)

    def lines_of(template):
        path = f"{args.folder}/template.jinja"
        with open(path, "w", encoding="utf-8") as file:
            file.write(template)
        return Lines(args.lines, args.demo, path)

    check_continued(agent, "agent")
    for template in args.templates:
        check_continued(Lines(args.lines, args.agent, template), template)
    check_continuations(demo)
    check_templates(lines_of)
    check_functions(agent)
    check_logprobs(demo, True)
    check_logprobs(agent, False)
    check_constraints(demo)
    check_ends(demo)
    check_filters(demo)
    check_dry(demo)
    check_samplers(demo)
    check_refused(demo)
    print("check_fields: all is right")


main()
