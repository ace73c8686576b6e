#!/usr/bin/env bash
# quern bench-serve against a server on loopback with known delays: percentiles are those of the delays, prompts have the lengths asked
# for, and each way in which an answer can go wrong is counted as what it is.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
quern bench-serve http://127.0.0.1:1
if grep -q 'built without libcurl' "$work/err"; then
    echo "this quern has no libcurl"
    exit 77
fi
unset SSL_CERT_FILE
export http_proxy=http://127.0.0.1:1 # none on the way to this machine
python3 "$QN_SOURCE_DIR/tests/e2e/openai_server.py" "$work" &
server=$!
trap 'kill $server; wait $server 2>/dev/null; rm -rf "$work"' EXIT
for _ in {1..600}; do
    [ ! -e "$work/port" ] || break
    sleep 0.1
done
url=http://127.0.0.1:$(cat "$work/port") || exit 1

# is EXPRESSION - of the JSON on standard output, r, and of the requests that the server got after the two that measure words, sent.
is() {
    holds "$1" || fail "$1"
}

holds() {
    python3 - "$1" "$work" <<'P'
import json, sys
r = json.load(open(sys.argv[2] + "/out"))
sent = [json.loads(line) for line in open(sys.argv[2] + "/log")][2:]
def near(found, expected, late): # milliseconds; delays are never shorter, and longer on a busy machine
    return expected - 1 <= found <= expected + late
def words(request):
    body = request["body"]
    return len((body["messages"][0]["content"] if "messages" in body else body["prompt"]).split())
sys.exit(not eval(sys.argv[1]))
P
}

measure() {
    : >"$work/log"
    quern bench-serve "$@" --format json
}

# measure_times EXPRESSION ... -- ARGUMENTS: a measurement of which every EXPRESSION holds, the best of five, since other processes delay
# some: a program that measures wrongly does so each time.
measure_times() {
    local expressions=() failed
    while [ "$1" != -- ]; do
        expressions+=("$1")
        shift
    done
    shift
    for _ in {1..5}; do
        measure "$@"
        [ $status -eq 0 ] || fail "$*: status $status"
        failed=
        for expression in "${expressions[@]}"; do
            holds "$expression" || failed=$expression
        done
        [ -n "$failed" ] || return 0
    done
    fail "$failed"
}

# ---- Times ----
# 20 requests by 10 clients; the first token comes after 300 ms, of every fifth after 600; one of 9 gaps of every fifth is 400 ms, the others 40.
measure_times \
    'near(r["ttft_ms"]["p50"], 300, 150) and near(r["ttft_ms"]["p95"], 600, 150) and near(r["ttft_ms"]["max"], 600, 250)' \
    'near(r["inter_token_ms"]["p50"], 40, 20) and near(r["inter_token_ms"]["p95"], 40, 60) and near(r["inter_token_ms"]["p99"], 400, 150)' \
    'near(r["ttft_ms"]["mean"], 360, 150) and near(r["inter_token_ms"]["mean"], 48, 20)' \
    'near(r["per_token_ms"]["p50"], 40, 20) and near(r["per_token_ms"]["max"], 80, 40) and near(r["latency_ms"]["p50"], 660, 250)' \
    '1.5 < r["seconds"] < 6' \
    -- "$url/" --parallel 10 --requests 20 -p 101 -n 10
is 'r["test"] == "serve" and r["model"] == "steady" and r["api"] == "chat" and r["url"].endswith("/v1/chat/completions")'
is 'r["sent"] == r["answered"] == 20 and r["failed"] == r["cancelled"] == 0 and r["errors"] == {} and r["counted_by"] == "usage"'
is 'r["prompt_tokens"] == 20 * 101 and r["cached_tokens"] == 60 and r["completion_tokens"] == 200'
is 'abs(r["tok_per_s"] - 200 / r["seconds"]) < 0.1'
is 'len(sent) == 20 and all(words(s) == 45 and s["body"]["max_tokens"] == 10 and s["body"]["ignore_eos"] is True for s in sent)'
is 'all(s["body"]["stream"] is True and s["body"]["stream_options"] == {"include_usage": True} for s in sent)'
is 'len({s["body"]["messages"][0]["content"] for s in sent}) == 20 and not any("Authorization" in s["headers"] for s in sent)'

# At random times, counted from when they were due, with lengths of a file and a text.
printf '17 3\n# a comment\n27 5\n' >"$work/lengths"
printf 'alpha beta\ngamma delta\n' >"$work/text"
measure_times '0.8 < sent[-1]["time"] - sent[0]["time"] < 5 and near(r["ttft_ms"]["p50"], 300, 150)' \
    -- "$url/v1" --api completions --model steady --rate 20 --requests 40 --lengths "$work/lengths" -f "$work/text" --seed 7 --may-end
is 'r["rate"] == 20 and r["parallel"] == 0 and r["answered"] == 40 and r["url"].endswith("/v1/completions")'
is 'sorted({words(s) for s in sent}) == [5, 10] and sorted({s["body"]["max_tokens"] for s in sent}) == [3, 5]'
is 'all("ignore_eos" not in s["body"] for s in sent) and set(sent[0]["body"]["prompt"].split()) <= {"alpha", "beta", "gamma", "delta"}'
is 'r["prompt_tokens"] == 20 * (17 + 27) and r["completion_tokens"] == 20 * 8'
cp "$work/log" "$work/first"
measure "$url/v1" --api completions --model steady --rate 20 --requests 40 --lengths "$work/lengths" -f "$work/text" --seed 7 --may-end
python3 - "$work/first" "$work/log" <<'P' || fail "a seed gives other prompts another time"
import json, sys
sys.exit(len({tuple(sorted(json.loads(l)["body"]["prompt"] for l in open(p))) for p in sys.argv[1:]}) != 1)
P

# ---- Sampling ----
is 'all(s["body"]["temperature"] == 0 and not {"top_p", "top_k", "min_p", "seed", "response_format"} & set(s["body"]) for s in sent)'
is 'r["sampling"] == {"temperature": 0} and r["json_schema"] is None'
printf '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}' >"$work/schema.json"
for api in chat completions; do
    measure "$url" --api $api --model uncounted --requests 2 -n 2 --temp 0.8 --top-k 20 --top-p 0.95 --min-p 0.05 --seed 7 --json-schema "$work/schema.json"
    [ $status -eq 0 ] || fail "$api: sampling: status $status"
    is 'r["sampling"] == {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "seed": 7} and r["json_schema"].endswith("/schema.json")'
    is 'len(sent) == 2 and all({k: s["body"][k] for k in r["sampling"]} == r["sampling"] for s in sent)'
    is 'all(s["body"]["response_format"]["type"] == "json_schema" and s["body"]["response_format"]["json_schema"] == {"name": "schema", "strict": True, "schema":
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}} for s in sent)'
done
for option in 'temp temperature 1.5' 'top-k top_k 0' 'top-p top_p 0.5' 'min-p min_p 0.25'; do # what is not given is not sent
    read -r name key value <<<"$option"
    measure "$url" --model uncounted --requests 2 -n 2 --$name $value
    is "r['sampling'] == {'temperature': 0, 'seed': 1, '$key': $value} and all({k: v for k, v in s['body'].items() if k in ('temperature', 'top_k', 'top_p',
        'min_p', 'seed')} == r['sampling'] for s in sent)"
done
quern bench-serve "$url" --requests 3 -n 2 --temp 1.1 --json-schema "$work/schema.json"
[ "$(sed -n 1p "$work/out")" = "sampled: temperature 1.1, seed 1; JSON by $work/schema.json" ] || fail "the table: sampling"
quern bench-serve "$url" --requests 3 -n 2
! grep -q sampled "$work/out" || fail "the table: sampled without options"
[ $status -eq 0 ] && grep -q '^3 of 3 requests in .*: 3 answered, 0 failed' "$work/out" && grep -q '^first token ' "$work/out" || fail "the table"
measure "$url" --model spelled --requests 2 -n 2
is 'r["answered"] == 2 and r["completion_tokens"] == 4 and r["counted_by"] == "events"'
measure "$url" --model uncounted --requests 2 -n 7
is 'r["answered"] == 2 and r["completion_tokens"] == 14 and r["counted_by"] == "events"'
grep -q 'counted no tokens for 2 of 2' "$work/err" || fail "uncounted: not said"
measure "$url" --model keyed --requests 2 --api-key secret
is 'r["answered"] == 2'
QUERN_API_KEY=secret measure "$url" --model keyed --requests 2
is 'r["answered"] == 2'

# ---- What goes wrong ----
goes_wrong() { # MODEL KIND MESSAGE
    quern bench-serve "$url" --model "$1" --requests 2 -n 2 --timeout 2
    [ $status -eq 1 ] || fail "$1: status $status"
    grep -qE "^2 x $2: .*$3" "$work/out" && grep -q '2 of 2 requests .* 0 answered, 2 failed' "$work/out" || fail "$1: not '$2: $3'"
}
goes_wrong cut closed 'after 2 events'
goes_wrong reset closed .
goes_wrong closed closed .
goes_wrong not_json 'bad event' '\{choices\}'
goes_wrong failing 'error event' 'out of memory'
goes_wrong endless 'bad event' 'longer than 1048576'
goes_wrong talkative 'too long' 'more bytes'
goes_wrong stuck timeout .
goes_wrong empty 'no text' .
goes_wrong whole 'no stream' 'not streamed'
goes_wrong moved 'HTTP 307' .
refuses 1 'HTTP 401: no key' bench-serve "$url" --model keyed
measure "$url" --model busy --requests 10 --parallel 2
[ $status -eq 1 ] || fail "busy: status $status"
is 'r["answered"] == 5 and r["failed"] == 5 and r["errors"] == {"HTTP 429": 5} and r["ttft_ms"]["max"] > 0'
measure "$url" --model empty --requests 2
is 'r["ttft_ms"] is None and r["errors"] == {"no text": 2}'

# Ctrl-C: the results so far. In the foreground, timeout signals the program once; a second signal would end it without them.
timeout --foreground -s INT 4 "$QN_BIN/quern" bench-serve "$url" --requests 1000 --parallel 2 -n 2 --format json >"$work/out" 2>"$work/err"
: >>"$work/log"
is 'r["answered"] > 0 and r["cancelled"] == 2 and r["sent"] == r["answered"] + 2 and r["failed"] == 0'

refuses 2 "expected the URL of a server" bench-serve localhost:8080
refuses 2 'cannot be used with --parallel' bench-serve "$url" --rate 2 --parallel 2
refuses 1 'HTTP 404: no such path; --model' bench-serve "$url/none"
refuses 1 'no connection' bench-serve http://127.0.0.1:1 --model x
refuses 1 'null: the file has no lengths' bench-serve "$url" --lengths /dev/null
printf '[1]' >"$work/array.json"
printf '{"a": 1,\n]' >"$work/bad.json"
refuses 1 'array.json: expected a JSON schema, which is an object' bench-serve "$url" --json-schema "$work/array.json"
refuses 1 'bad.json:2:1: ' bench-serve "$url" --json-schema "$work/bad.json"
refuses 1 'No such file' bench-serve "$url" --json-schema "$work/none.json"
refuses 2 '--min-p: 1 is out of range' bench-serve "$url" --min-p 1

printf '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["a"], "additionalProperties": false}' >"$work/short.json"
# quern's own server takes what is sent, and begins another document where one is complete.
"$QN_BIN/quern" serve "$QN_SOURCE_DIR/models/quern-demo.gguf" --port 0 -q >"$work/address" 2>"$work/log2" &
own=$!
trap 'kill $server $own; wait $server $own 2>/dev/null; rm -rf "$work"' EXIT
for _ in {1..600}; do # it lists its model once that is loaded
    grep -q ready: "$work/address" && break
    kill -0 $own 2>/dev/null || break
    sleep 0.1
done
address=$(grep -oE 'http://[0-9.:]+' "$work/address" | head -n 1)
if [ -n "$address" ]; then
    measure "$address" --requests 4 --parallel 2 -p 40 -n 90 --temp 1 --top-k 20 --min-p 0.05 --json-schema "$work/short.json"
    is 'r["answered"] == 4 and r["completion_tokens"] == 4 * 90 and r["counted_by"] == "usage"'
    measure "$address" --api completions --requests 2 -p 40 -n 90 --json-schema "$work/short.json" --may-end
    is 'r["answered"] == 2 and r["completion_tokens"] < 2 * 90'
else
    grep -q 'built without' "$work/log2" || fail "quern serve did not begin: $(cat "$work/log2")"
fi
finish
