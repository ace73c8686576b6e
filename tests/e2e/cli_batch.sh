#!/usr/bin/env bash
# quern batch: answers in OpenAI's batch format, error lines, refusals, order, and a job that is killed three times and continued.
. "$(dirname "$0")/lib_cli.sh"
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
sanitized=${QN_SANITIZE:+yes}

# value EXPRESSION < LINES - of each line, as Python sees it in `x`.
value() { python3 -c "import json,sys
for line in sys.stdin:
    x = json.loads(line)
    print($1)"; }

# line ID BODY [URL]
line() { printf '{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' "$1" "${3:-/v1/completions}" "$2"; }

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
    line a '{"prompt":"a","n":2}'
    line b '{"prompt":7}'
    line b '{"prompt":"a"}'
    line c '{"prompt":"a","temperature":"hot"}'
    line d '{"prompt":"a"}' /v1/embeddings
    line e '{"messages":[{"role":"tool","content":"x"}]}' /v1/chat/completions
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

# ---- Refusals ----
refuses 2 'too few arguments' batch -m "$demo" "$work/in.jsonl"
refuses 1 'exists and is not empty' batch -m "$demo" "$work/in.jsonl" "$work/out.jsonl"
refuses 1 'overwritten' batch -m "$demo" "$work/in.jsonl" "$work/in.jsonl"
refuses 1 "No such file" batch -m "$demo" "$work/missing" "$work/new"
[ ! -e "$work/new" ] || fail "batch: made an output without an input"
refuses 1 'not a line that quern batch has written' batch -m "$demo" "$work/out.jsonl" "$work/bad.jsonl" --resume
refuses 2 'parallel: 0 is out of range' batch -m "$demo" "$work/in.jsonl" "$work/new" --parallel 0

# ---- Killed three times ----
count=${QN_BATCH_REQUESTS:-${sanitized:+60}}
count=${count:-150}
for ((i = 0; i < count; i++)); do
    line "request-$i" "{\"prompt\":\"Once upon a time there were $i\",\"max_tokens\":$((4 + i % 9))}"
done >"$work/many.jsonl"
for kill in 1 2 3; do
    "$QN_BIN/quern" batch -m "$demo" -q "$work/many.jsonl" "$work/many.out" --resume 2>"$work/err" &
    process=$!
    before=$(cat "$work/many.out" 2>/dev/null | wc -l)
    for ((tries = 0; tries < 600; tries++)); do
        [ "$(cat "$work/many.out" 2>/dev/null | wc -l)" -lt $((before + count / 6)) ] || break
        sleep 0.02
    done
    kill -KILL $process
    wait $process 2>/dev/null
    lines=$(wc -l <"$work/many.out")
    [ "$lines" -gt "$before" ] && [ "$lines" -lt "$count" ] || fail "batch: killed the $kill. time: $lines lines after $before"
    printf '{"id":"batch_req_9","custom_id":"requ' >>"$work/many.out" # as if it had been killed while writing
done
quern batch -m "$demo" "$work/many.jsonl" "$work/many.out" --resume
[ $status -eq 0 ] || fail "batch --resume: status $status"
[ "$(value 'x["custom_id"]' <"$work/many.out" | sort -u | wc -l)" -eq "$count" ] || fail "batch --resume: not all are answered"
[ "$(wc -l <"$work/many.out")" -eq "$count" ] || fail "batch --resume: $(wc -l <"$work/many.out") lines for $count requests"
[ "$(value 'x["error"]' <"$work/many.out" | sort -u)" = None ] || fail "batch --resume: errors"

# Answers do not depend on what they were evaluated with.
text='x["custom_id"], x["response"]["body"]["choices"][0]["text"]'
quern batch -m "$demo" -q "$work/many.jsonl" "$work/again.out" --parallel 3 --ordered
[ $status -eq 0 ] || fail "batch --parallel 3: status $status"
cmp -s <(value "$text" <"$work/many.out" | sort) <(value "$text" <"$work/again.out" | sort) ||
    fail "batch: answers depend on the number of sequences"
[ "$(value 'x["custom_id"]' <"$work/again.out" | head -n 3 | tr '\n' ' ')" = "request-0 request-1 request-2 " ] || fail "batch --ordered"

# Ctrl-C keeps what is finished.
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
