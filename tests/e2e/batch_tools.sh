#!/usr/bin/env bash
# quern batch: chats with tools. The caller (tools/make_parrot_model.py) answers everything with reasoning and a call.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_batch.sh"
caller=$golden/caller.gguf
chat=/v1/chat/completions
ask='"messages":[{"role":"user","content":"What is it?"}]'
tools='"tools":[{"type":"function","function":{"name":"look_up","description":"Looks up.","parameters":{"type":"object"}}}]'
call='{"id":"call_0","type":"function","function":{"name":"look_up","arguments":"{\"text\": \"a\"}"}}'
turns='{"role":"developer","content":"Be brief."},{"role":"user","content":"What is it?"}'

# ---- Answers ----
{
    line call "{$ask,$tools}" $chat
    line again "{$ask,$tools,\"tool_choice\":\"auto\",\"n\":2}" $chat
    line none "{$ask,$tools,\"tool_choice\":\"none\"}" $chat
    line plain "{$ask,\"tool_choice\":null,\"tools\":null}" $chat
    line cut "{$ask,$tools,\"max_tokens\":4}" $chat
    line stop "{$ask,\"stop\":[\"quern\",\"I look\"]}" $chat
    line logprobs "{$ask,$tools,\"logprobs\":true}" $chat
    line quiet "{$ask,\"chat_template_kwargs\":{\"enable_thinking\":false,\"preserve_thinking\":true,\"reasoning_effort\":\"low\"}}" $chat
    line effort "{$ask,\"reasoning_effort\":\"none\"}" $chat
    line loud "{$ask,\"reasoning_effort\":\"high\"}" $chat
    line turns "{\"messages\":[$turns,{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"Hm.\",\"tool_calls\":[$call]},{\"role\":\"tool\",\"tool_call_id\":\"call_0\",\"content\":[{\"type\":\"text\",\"text\":\"A mill.\"}]}],$tools}" $chat
} >"$work/in.jsonl"
quern batch -m "$caller" "$work/in.jsonl" "$work/out.jsonl" --ordered
[ $status -eq 0 ] && grep -q '11 answers, 0 errors' "$work/err" || fail "tools: status $status"
cat >"$work/turns.json" <<'JSON'
{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"},
  {"role": "assistant", "content": "", "reasoning_content": "Hm.",
   "tool_calls": [{"function": {"name": "look_up", "arguments": {"text": "a"}}}]}, {"role": "tool", "content": "A mill."}],
 "tools": [{"type": "function", "function": {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object"}}}],
 "add_generation_prompt": true}
JSON
quern tokenize -m "$caller" --chat "$work/turns.json" --ids
n_turns=$(wc -w <"$work/out")
python3 - "$work/out.jsonl" "$n_turns" <<'PY' || fail "tools: answers"
import json, sys

x = {}
for text in open(sys.argv[1]):
    answer = json.loads(text)
    x[answer["custom_id"]] = answer["response"]["body"]
one = {name: body["choices"][0] for name, body in x.items()}
prompt = {name: body["usage"]["prompt_tokens"] for name, body in x.items()}

def check(what, is_so):
    if not is_so:
        sys.exit(f"{what}: {x}")

said = '\n{"name": "look_up", "arguments": {"text": "a \\"quern\\"", "n": 2}}\n'
for name in ("call", "again", "logprobs", "turns"):
    message = one[name]["message"]
    check(name, sorted(message) == ["content", "reasoning_content", "role", "tool_calls"] and message["content"] is None)
    check(name, message["reasoning_content"] == "I look it up." and one[name]["finish_reason"] == "tool_calls")
    (call,) = message["tool_calls"]
    check(name, sorted(call) == ["function", "id", "type"] and call["type"] == "function" and call["function"]["name"] == "look_up")
    check(name, json.loads(call["function"]["arguments"]) == {"text": 'a "quern"', "n": 2})
ids = [c["message"]["tool_calls"][0]["id"] for c in x["call"]["choices"] + x["again"]["choices"]]
check("ids", len(set(ids)) == 3 and all(i.startswith("call_0_") for i in ids))
check("tools are rendered", prompt["call"] == prompt["again"] > prompt["plain"] == prompt["none"])
for name in ("none", "plain", "quiet", "effort", "loud"):
    message = one[name]["message"]
    check(name, message["content"] == "<tool_call>" + said + "</tool_call>" and "tool_calls" not in message)
    check(name, one[name]["finish_reason"] == "stop" and message["reasoning_content"] == "I look it up.")
check("a call that is cut", one["cut"]["message"]["content"] == "" and one["cut"]["finish_reason"] == "length")
check("stop strings are not of reasoning", one["stop"]["message"]["reasoning_content"] == "I look it up.")
check("stop", one["stop"]["message"]["content"] == ("<tool_call>" + said).split("quern")[0] and one["stop"]["finish_reason"] == "stop")
check("log probabilities", len(one["logprobs"]["logprobs"]["content"]) == 6)
check("template variables", prompt["quiet"] == prompt["effort"] > prompt["loud"] == prompt["plain"])
check("turns", prompt["turns"] == int(sys.argv[2]))
PY

# ---- Grammars: the caller says one thing, so that other tokens come only where its own may not ----
schema() { printf '"response_format":{"type":"json_schema","json_schema":{"name":"a","strict":%s,"schema":%s}}' "$1" "$2"; }
typed() { printf '"tools":[{"type":"function","function":{"name":"look_up","parameters":%s}},{"type":"function","function":{"name":"read","parameters":%s}}]' "$1" "$none"; }
none='{"type":"object","additionalProperties":false}' # so that an answer ends, whatever is drawn
number='{"type":"object","properties":{"n":{"type":"integer","minimum":10,"maximum":99}},"required":["n"],"additionalProperties":false}'
{
    line auto "{$ask,$(typed "$number")}" $chat
    line required "{$ask,$(typed "$number"),\"tool_choice\":\"required\",\"parallel_tool_calls\":false}" $chat
    line named "{$ask,$(typed "$number"),\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"read\"}}}" $chat
    line schema "{$ask,\"temperature\":0,\"max_tokens\":900,$(schema true "$number")}" $chat
    line object "{$ask,\"max_tokens\":200,\"temperature\":1.5,\"response_format\":{\"type\":\"json_object\"}}" $chat
    line text "{$ask,\"response_format\":{\"type\":\"text\"}}" $chat
} >"$work/grammar.jsonl"
quern batch -m "$caller" "$work/grammar.jsonl" "$work/grammar.out" --ordered
[ $status -eq 0 ] && grep -q '6 answers, 0 errors' "$work/err" || fail "grammars: status $status"
python3 - "$work/grammar.out" <<'PY' || fail "grammars: answers"
import json, sys

one = {}
for text in open(sys.argv[1]):
    answer = json.loads(text)
    one[answer["custom_id"]] = answer["response"]["body"]["choices"][0]

def check(what, is_so):
    if not is_so:
        sys.exit(f"{what}: {one[what]}")

for name in ("auto", "required", "named"):
    calls = one[name]["message"].get("tool_calls") or []
    check(name, len(calls) >= 1 and (name != "required" or len(calls) == 1))
    for call in calls:
        function, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
        check(name, function == "read" if name == "named" else function in ("look_up", "read"))
        check(name, function == "read" or (list(arguments) == ["n"] and 10 <= arguments["n"] <= 99))
for name in ("auto", "required", "named", "schema", "object", "text"):
    check(name, one[name]["message"]["reasoning_content"] == "I look it up.")
check("schema", one["schema"]["finish_reason"] == "stop")
check("schema", 10 <= json.loads(one["schema"]["message"]["content"])["n"] <= 99)
check("object", one["object"]["message"]["content"].startswith("{"))
PY

# ---- Errors ----
with_call() { printf '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":%s}]}' "$1"; }
{
    line 1 "{$ask,$tools,\"tool_choice\":\"any\"}" $chat
    line 2 "{$ask,$tools,\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"read\"}}}" $chat
    line 3 "{$ask,\"tools\":[{\"type\":\"web_search\"}]}" $chat
    line 4 "{$ask,\"tools\":[{\"type\":\"function\"}]}" $chat
    line 5 "{$ask,\"tools\":{}}" $chat
    line 6 "{$ask,\"reasoning_effort\":\"huge\"}" $chat
    line 7 "{$ask,\"chat_template_kwargs\":{\"bos_token\":\"x\"}}" $chat
    line 8 "{$ask,\"chat_template_kwargs\":{\"enable_thinking\":\"yes\"}}" $chat
    line 9 "{$ask,\"parallel_tool_calls\":5}" $chat
    line 10 "$(with_call '[{"function":{}}]')" $chat
    line 11 "$(with_call '{}')" $chat
    line 12 "$(with_call '[]')" $chat
    line 13 '{"messages":[{"role":"functions","content":"a"}]}' $chat
    line 14 '{"messages":[]}' $chat
    line 15 '{"messages":["a"]}' $chat
    line 16 "{$ask,\"chat_template_kwargs\":[]}" $chat
    line 17 "{$ask,\"response_format\":{\"type\":\"yaml\"}}" $chat
    line 18 "{$ask,$tools,\"grammar\":\"root ::= [a]\"}" $chat
    line 19 "{$ask,$(schema true '{"properties":{"a":{"items":{"contains":{}}}}}')}" $chat
    line 20 "{$ask,\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}}" $chat
} >"$work/bad.jsonl"
quern batch -m "$caller" "$work/bad.jsonl" "$work/bad.out" --ordered
[ $status -eq 1 ] || fail "tools: bad lines: status $status"
value 'x["error"]["code"].replace("invalid_request", "-") + " " + x["error"]["message"]' <"$work/bad.out" >"$work/found"
diff - "$work/found" <<'TEXT' || fail "tools: errors"
- line 1: 'tool_choice' is "any", expected "none", "auto", "required" or {"type": "function", "function": {"name": ...}}
- line 2: 'tool_choice' names a function that is not among the tools
unsupported line 3: tool 0 is of the type 'web_search', expected "function"
- line 4: tool 0: expected {"type": "function", "function": {"name": ...}}
- line 5: 'tools' is an object, expected an array
- line 6: 'reasoning_effort' is "huge", expected "none", "minimal", "low", "medium", "high", "xhigh" or "max"
unsupported line 7: 'chat_template_kwargs' has 'bos_token', which the server sets
- line 8: 'enable_thinking' is a string, expected true or false
- line 9: 'parallel_tool_calls' is an integer, expected true or false
- line 10: message 1: tool call 0 has no function with a name
- line 11: 'tool_calls' is an object, expected an array
- line 12: 'content' is missing, expected a string or an array of texts
- line 13: 'role' is "functions", expected "system", "developer", "user", "assistant" or "tool"
- line 14: 'messages' is an empty array, expected an array with at least one message
- line 15: 'role' is missing, expected "system", "developer", "user", "assistant" or "tool"
- line 16: 'chat_template_kwargs' is an empty array, expected an object
- line 17: 'response_format.type' is "yaml", expected "text", "json_object" or "json_schema"
unsupported line 18: 'grammar' is given with tools that may be called
unsupported line 19: schema: #/properties/a/items: keyword 'contains' is not supported
- line 20: 'response_format.json_schema.schema' is missing, expected a JSON schema
TEXT
line a "{$ask,$tools}" $chat >"$work/demo.jsonl"
quern batch -m "$demo" "$work/demo.jsonl" "$work/demo.out"
[ "$(value 'x["error"]["code"], x["error"]["message"]' <"$work/demo.out")" = \
    "unsupported line 1: tools: the model's chat template has none" ] || fail "tools: a template without tools"
finish
