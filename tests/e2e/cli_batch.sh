#!/usr/bin/env bash
# quern batch: answers in OpenAI's batch format, what requests can ask, error lines, refusals, order, Ctrl-C. batch_resume.sh
# kills and continues it.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_batch.sh"

# ---- Answers ----
{
    line a '{"model":"m","prompt":"Once upon a time","max_tokens":8,"temperature":0}'
    line b '{"messages":[{"role":"user","content":"Tell me a story."}],"max_completion_tokens":5,"temperature":0.5,"seed":3,"tools":[]}' /v1/chat/completions
    echo
    line c '{"prompt":[10,20,30],"temperature":0}'
    line d '{"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Tell "},{"type":"text","text":"me."}]}],"max_tokens":4}' /v1/chat/completions
    line e '{"prompt":"Once upon a time","max_tokens":30,"temperature":0,"stop":["the","a"]}'
} >"$work/in.jsonl"
quern batch -m "$demo" "$work/in.jsonl" "$work/out.jsonl" --ordered
[ $status -eq 0 ] || fail "batch: status $status"
[ ! -s "$work/out" ] || fail "batch: printed something on standard output"
grep -q '^quern: note: 5 answers, 0 errors' "$work/err" || fail "batch: the summary"
[ "$(value 'x["custom_id"], x["id"], x["error"], x["response"]["status_code"]' <"$work/out.jsonl" | tr '\n' ';')" = \
    "a batch_req_1 None 200;b batch_req_2 None 200;c batch_req_4 None 200;d batch_req_5 None 200;e batch_req_6 None 200;" ] ||
    fail "batch: $(cat "$work/out.jsonl")"
quern run -m "$demo" -p "Once upon a time" -n 8 --temp 0 -q
[ "$(head -n 1 "$work/out.jsonl" | value 'x["response"]["body"]["choices"][0]["text"]')" = "$(cat "$work/out")" ] ||
    fail "batch: the text of a is not what run prints"
choice='x["response"]["body"]["choices"][0]'
[ "$(value 'x["response"]["body"]["object"], x["response"]["body"]["usage"]["completion_tokens"], x["response"]["body"]["choices"][0]["finish_reason"]' <"$work/out.jsonl" | sed -n '1p;3p')" = \
    "text_completion 8 length
text_completion 16 length" ] || fail "batch: lengths"
[ "$(sed -n 2p "$work/out.jsonl" | value "x['response']['body']['object'], $choice['message']['role']")" = "chat.completion assistant" ] ||
    fail "batch: a chat completion"
[ "$(sed -n 5p "$work/out.jsonl" | value "'the' in $choice['text'], $choice['finish_reason']")" = "False stop" ] ||
    fail "batch: a stop string"

# ---- Errors of lines ----
{
    echo 'nonsense'
    line a '{"prompt":"a","n":0}'
    line b '{"prompt":7}'
    line b '{"prompt":"a"}'
    line c '{"prompt":"a","temperature":"hot"}'
    line d '{"prompt":"a"}' /v1/embeddings
    line e '{"messages":[{"role":"function","content":"x"}]}' /v1/chat/completions
    line f '{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}' /v1/chat/completions
    line g "{\"prompt\":\"$(printf 'word %.0s' {1..60})\"}"
    line h '{"prompt":"a","stop":[""]}'
    echo '{"url":"/v1/completions","body":{"prompt":"a"}}'
    line i '{"prompt":"a","max_tokens":1}'
    line j '{"prompt":[99999999]}'
    printf '{"custom_id":"k","url":"/v1/completions","body":{"prompt":"a","max_tokens":2,"temperature":3}}' # no newline at the end
} >"$work/bad.jsonl"
quern batch -m "$demo" "$work/bad.jsonl" "$work/bad.out" --ordered -c 40
[ $status -eq 0 ] || fail "batch: bad lines: status $status"
grep -q '^quern: note: 1 answers, 13 errors' "$work/err" || fail "batch: bad lines: the summary"
[ "$(value 'x["error"]["code"] if x["error"] else "-"' <"$work/bad.out" | tr '\n' ' ')" = \
    "invalid_json invalid_request invalid_request duplicate_custom_id invalid_request invalid_request invalid_request unsupported_content context_length_exceeded invalid_request invalid_request - invalid_request invalid_request " ] ||
    fail "batch: codes: $(cat "$work/bad.out")"
n=0
while read -r message; do
    n=$((n + 1))
    [ "$message" = - ] || [ "${message#line $n: }" != "$message" ] || fail "batch: line $n: $message"
done < <(value 'x["error"]["message"] if x["error"] else "-"' <"$work/bad.out")
cp "$work/bad.out" "$work/bad.before"
quern batch -m "$demo" "$work/bad.jsonl" "$work/bad.out" --resume -c 40
[ $status -eq 0 ] && cmp -s "$work/bad.out" "$work/bad.before" || fail "batch: --resume of a finished job changes it"

# Values of a wrong type or range, each with its field in the message.
wrong=('"n":"2"' '"n":129' '"seed":1.5' '"stop":5' '"max_tokens":"x"' '"max_completion_tokens":-2' '"top_p":"1"' '"temperature":[]'
    '"presence_penalty":"a"' '"frequency_penalty":3' '"logprobs":true' '"logprobs":21' '"logit_bias":[5]' '"logit_bias":{"x":1}'
    '"logit_bias":{"5x":1}' '"logit_bias":{"5":"a"}' '"logit_bias":{"5":101}')
wrong_chat=('"logprobs":1' '"top_logprobs":21,"logprobs":true' '"top_logprobs":3')
{
    for ((i = 0; i < ${#wrong[@]}; i++)); do line "c$i" "{\"prompt\":\"a\",${wrong[i]}}"; done
    for ((i = 0; i < ${#wrong_chat[@]}; i++)); do
        line "m$i" "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],${wrong_chat[i]}}" /v1/chat/completions
    done
    line outside '{"prompt":"a","logit_bias":{"99999":1}}'
} >"$work/wrong.jsonl"
quern batch -m "$demo" "$work/wrong.jsonl" "$work/wrong.out" --ordered
[ $status -eq 1 ] || fail "batch: wrong values: status $status"
[ "$(value 'x["error"]["code"]' <"$work/wrong.out" | sort | uniq -c | tr -s ' ')" = " 21 invalid_request" ] ||
    fail "batch: wrong values: $(cat "$work/wrong.out")"
fields=("${wrong[@]}" "${wrong_chat[@]}" '"logit_bias":')
n=0
while read -r message; do
    field=${fields[n++]#\"}
    [[ $message == "line $n: "*"${field%%\"*}"* ]] || fail "batch: wrong values: line $n does not name ${field%%\"*}: $message"
done < <(value 'x["error"]["message"]' <"$work/wrong.out")

# ---- Log probabilities, choices, bias, penalties ----
chat='"messages":[{"role":"user","content":"Tell me a story."}]'
quern tokenize -m "$demo" --ids 'é'
part=$(cut -d' ' -f1 "$work/out") # the first byte of a character
{
    line a '{"prompt":"Once upon a time","max_tokens":12,"seed":1,"logprobs":3}'
    line b "{$chat,\"max_tokens\":12,\"seed\":1,\"logprobs\":true,\"top_logprobs\":4}" /v1/chat/completions
    line c '{"prompt":"Once upon a time","max_tokens":12,"seed":1,"n":3}'
    line d '{"prompt":"Once upon a time","max_tokens":12,"seed":1}'
    line e '{"prompt":"Once upon a time","max_tokens":12,"logit_bias":{"300":100},"logprobs":0}'
    line f '{"prompt":"Once upon a time","max_tokens":40,"temperature":0,"logprobs":0,"stop":"girl"}'
    line g '{"prompt":"Once upon a time","max_tokens":60,"temperature":0}'
    line h '{"prompt":"Once upon a time","max_tokens":60,"temperature":0,"presence_penalty":2,"frequency_penalty":2}'
    line i "{\"prompt\":[10,20],\"max_tokens\":12,\"logit_bias\":{\"$part\":100},\"logprobs\":1}"
    line j "{$chat,\"max_tokens\":3,\"logprobs\":false}" /v1/chat/completions
    line k "{$chat,\"max_tokens\":600,\"seed\":2,\"logprobs\":true}" /v1/chat/completions
} >"$work/asked.jsonl"
quern batch -m "$demo" "$work/asked.jsonl" "$work/asked.out" --ordered
[ $status -eq 0 ] && grep -q '11 answers, 0 errors' "$work/err" || fail "batch: log probabilities: status $status"
python3 - "$work/asked.out" <<'EOF' || fail "batch: log probabilities, choices, bias or penalties"
import json, sys

x = {}
for text in open(sys.argv[1]):
    answer = json.loads(text)
    x[answer["custom_id"]] = answer["response"]["body"]
one = {name: body["choices"][0] for name, body in x.items()}

def check(what, is_so):
    if not is_so:
        sys.exit(f"{what}: {x}")

l, text = one["a"]["logprobs"], one["a"]["text"]
check("form", sorted(l) == ["text_offset", "token_logprobs", "tokens", "top_logprobs"])
check("lengths", {len(v) for v in l.values()} == {12})
check("tokens", "".join(l["tokens"]) == text)
check("offsets", all(text[o:].startswith(t) for o, t in zip(l["text_offset"], l["tokens"])))
for token, value, top in zip(l["tokens"], l["token_logprobs"], l["top_logprobs"]):
    check("top", top[token] == value <= 0 and 3 <= len(top) <= 4 and max(top.values()) >= value)
check("a request without log probabilities", text == one["d"]["text"])

content = one["b"]["logprobs"]["content"]
check("chat", "".join(t["token"] for t in content) == one["b"]["message"]["content"] and len(content) == 12)
for t in content:
    values = [o["logprob"] for o in t["top_logprobs"]]
    check("form of a token", sorted(t) == ["bytes", "logprob", "token", "top_logprobs"] and len(values) == 4)
    check("bytes", bytes(t["bytes"]).decode() == t["token"])
    check("top of a chat", values == sorted(values, reverse=True))
    check("form of the top", all(sorted(o) == ["bytes", "logprob", "token"] for o in t["top_logprobs"]))
    check("sampled", t["logprob"] in values or t["logprob"] <= values[-1])

choices = x["c"]["choices"]
check("choices", [c["index"] for c in choices] == [0, 1, 2] and len({c["text"] for c in choices}) == 3)
check("the first choice", choices[0]["text"] == one["d"]["text"])
usage, usage_alone = x["c"]["usage"], x["d"]["usage"]
check("usage", usage["completion_tokens"] == 36 and usage["prompt_tokens"] == usage_alone["prompt_tokens"])
check("none", all(one[name]["logprobs"] is None for name in "cdj"))
check("bias", len(set(one["e"]["logprobs"]["tokens"])) == 1)

f = one["f"]
check("stop", f["finish_reason"] == "stop" and "girl" not in f["text"])
check("tokens before a stop string", "".join(f["logprobs"]["tokens"]).startswith(f["text"]))
check("no token behind it", f["logprobs"]["text_offset"][-1] < len(f["text"]))
check("no top", all(list(top) == [t] for top, t in zip(f["logprobs"]["top_logprobs"], f["logprobs"]["tokens"])))
check("penalties", len(set(one["h"]["text"].split())) > len(set(one["g"]["text"].split())))
tokens = one["i"]["logprobs"]["tokens"]
check("bytes that are no text", all(t.startswith("bytes:\\x") for t in tokens) and len(tokens) == 12)
k = one["k"]
check("an end token", k["finish_reason"] == "stop")
check("no end token", "".join(t["token"] for t in k["logprobs"]["content"]) == k["message"]["content"])
EOF
quern batch -m "$demo" "$work/asked.jsonl" "$work/alone.out" --parallel 1 --ordered --prefix-cache off
[ $status -eq 0 ] && cmp -s <(value 'x["response"]["body"]["choices"]' <"$work/asked.out") \
    <(value 'x["response"]["body"]["choices"]' <"$work/alone.out") || fail "batch: answers depend on the number of sequences"

# ---- Refusals ----
refuses 2 'too few arguments' batch -m "$demo" "$work/in.jsonl"
refuses 1 'exists and is not empty' batch -m "$demo" "$work/in.jsonl" "$work/out.jsonl"
refuses 1 'overwritten' batch -m "$demo" "$work/in.jsonl" "$work/in.jsonl"
refuses 1 "No such file" batch -m "$demo" "$work/missing" "$work/new"
[ ! -e "$work/new" ] || fail "batch: made an output without an input"
refuses 1 'not a line written by quern batch' batch -m "$demo" "$work/out.jsonl" "$work/bad.jsonl" --resume
refuses 2 'parallel: 0 is out of range' batch -m "$demo" "$work/in.jsonl" "$work/new" --parallel 0

# ---- Ctrl-C keeps what is finished ----
for ((i = 0; i < 150; i++)); do
    line "request-$i" "{\"prompt\":\"Once upon a time there were $i\",\"max_tokens\":$((4 + i % 9))}"
done >"$work/many.jsonl"
"$QN_BIN/quern" batch -m "$demo" "$work/many.jsonl" "$work/ctrl.out" 2>"$work/err" &
process=$!
for ((tries = 0; tries < 600; tries++)); do
    [ ! -s "$work/ctrl.out" ] || break
    sleep 0.02
done
kill -TERM $process
wait $process
[ $? -eq 143 ] || fail "batch: a signal"
value 'x["error"]' <"$work/ctrl.out" >/dev/null || fail "batch: a signal leaves an incomplete line"
finish
