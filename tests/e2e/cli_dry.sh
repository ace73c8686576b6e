#!/usr/bin/env bash
# DRY on the command line: a prompt that repeats itself is continued so unless it is on, and what breaks a repetition; and that
# quern serve and quern batch sample by their options, what bodies say, and the library's defaults for the rest.
. "$(dirname "$0")/lib_cli.sh"
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
prompt='Tom and Tom and Tom and Tom and'

# text NAME OPTION... - the answer of quern run, kept as $work/NAME.
text() {
    local name=$1
    shift
    quern run -m "$demo" -p "$prompt" -q -t 2 --temp 0 -n 3 "$@"
    [ $status -eq 0 ] || fail "run $*: status $status"
    cp "$work/out" "$work/$name"
}
text plain
for options in '--dry-multiplier 0' '--dry-base 2' '--dry-multiplier 2 --dry-penalty-last-n 0' '--dry-multiplier 2 --dry-allowed-length 20' \
    '--dry-multiplier 2 --dry-sequence-breaker none --dry-sequence-breaker and' '--dry-multiplier 2 --dry-sequence-breaker x --dry-sequence-breaker Tom'; do
    text same $options
    cmp -s "$work/plain" "$work/same" || fail "run $options: DRY is off, or broken"
done
text several --dry-multiplier 2 --dry-sequence-breaker 'm and'
cmp -s "$work/plain" "$work/several" || fail "a breaker of several tokens"
for options in '--dry-multiplier 2' '--dry-multiplier=2 --dry-base=1.5 --dry-allowed-length=3 --dry-penalty-last-n=20' \
    '--dry-multiplier 2 --dry-sequence-breaker and --dry-sequence-breaker none' '--dry-multiplier 2 --dry-sequence-breaker none' '--dry-multiplier 2 --dry-sequence-breaker Bob'; do
    text other $options
    ! cmp -s "$work/plain" "$work/other" || fail "run $options: no DRY"
done
printf '%s\n' "$prompt" | "$QN_BIN/quern" chat -m "$demo" -q -t 2 --temp 0 -n 3 --dry-multiplier 2 --dry-sequence-breaker and >"$work/out" 2>"$work/err" ||
    fail "chat: status $?"

if command -v python3 >/dev/null && "$QN_BIN/quern" serve --help >/dev/null 2>&1; then
    printf '{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"prompt": "%s"%s}}\n' \
        mirostat "$prompt" ', "max_tokens": 30, "temperature": 1.5, "seed": 3, "mirostat": 2' given "$prompt" ', "max_tokens": 30, "temperature": 1.5, "seed": 3, "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1' \
        xtc "$prompt" ', "max_tokens": 30, "temperature": 1.5, "seed": 3, "xtc_probability": 1' threshold "$prompt" ', "max_tokens": 30, "temperature": 1.5, "seed": 3, "xtc_probability": 1, "xtc_threshold": 0.1' \
        plain "$prompt" ', "max_tokens": 3, "temperature": 0' dry "$prompt" ', "max_tokens": 3, "temperature": 0, "dry_multiplier": 2' \
        broken "$prompt" ', "max_tokens": 3, "temperature": 0, "dry_multiplier": 2, "dry_sequence_breakers": [" and"]' >"$work/in.jsonl"
    quern batch -m "$demo" -t 2 -q "$work/in.jsonl" "$work/out.jsonl"
    [ $status -eq 0 ] || fail "batch: status $status"
    python3 - "$work/out.jsonl" <<'P' || fail "batch"
import json, sys
texts = {}
for line in map(json.loads, open(sys.argv[1])):
    texts[line["custom_id"]] = line["response"]["body"]["choices"][0]["text"]
assert texts["mirostat"] == texts["given"] != texts["xtc"] == texts["threshold"], texts
assert texts["plain"] == texts["broken"] != texts["dry"], texts
P
    python3 - "$QN_BIN/quern" "$demo" "$prompt" <<'P' || fail "serve"
import json, subprocess, sys, time, urllib.error, urllib.request

def serve(options, bodies):
    """What /props says of sampling, and the answers to bodies."""
    server = subprocess.Popen([sys.argv[1], "serve", "-m", sys.argv[2], "-q", "-t", "2", "--port", "0", *options], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().split()[-1].rstrip("/")
        def ask(path, body):
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
            for _ in range(1000):
                try:
                    return json.load(urllib.request.urlopen(request, timeout=120))
                except urllib.error.HTTPError as error:
                    if error.code != 503: # until the model is loaded
                        raise
                    time.sleep(0.1)
        answers = [ask("/completion", body) for body in bodies]
        return ask("/props", None)["default_generation_settings"]["params"], answers
    finally:
        server.terminate()
        server.wait(60)

body = {"prompt": sys.argv[3], "n_predict": 3, "temperature": 0}
defaults = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "xtc_threshold": 0.1, "dry_multiplier": 0,
            "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1}
def rounded(found):
    return {name: round(found[name], 5) for name in defaults}

props, answers = serve([], [body, {**body, "dry_multiplier": 2}, {**body, "dry_multiplier": 2, "dry_sequence_breakers": [" and"]}])
# The model may recommend the first four.
assert {**rounded(props), **{name: defaults[name] for name in list(defaults)[:4]}} == defaults, props
assert answers[0]["content"] == answers[2]["content"] != answers[1]["content"], answers
assert answers[1]["generation_settings"]["dry_sequence_breakers"] == ["\n", ":", '"', "*"]
given = {"temperature": 0.5, "top_k": 30, "top_p": 0.75, "min_p": 0.25, "typical_p": 0.5, "top_n_sigma": 2, "xtc_probability": 0.25, "xtc_threshold": 0.3, "dry_multiplier": 2,
         "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 20, "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2}
names = {"temperature": "temp", "typical_p": "typical", "mirostat_tau": "mirostat-ent", "mirostat_eta": "mirostat-lr"}
options = [text for name, value in given.items() for text in ("--" + names.get(name, name.replace("_", "-")), str(value))]
props, answers = serve(options, [{**body, "dry_multiplier": 0}, body, {**body, "dry_sequence_breakers": [" and"]}])
assert rounded(props) == given, props
assert rounded(answers[1]["generation_settings"]) == {**given, "temperature": 0}, answers
assert answers[0]["content"] == answers[2]["content"] != answers[1]["content"], answers
_, answers = serve(["--dry-multiplier", "2", "--dry-sequence-breaker", "\n", "--dry-sequence-breaker", "m and"], [{**body, "dry_multiplier": 0}, body, {**body, "dry_sequence_breakers": []}])
assert answers[0]["content"] == answers[1]["content"] != answers[2]["content"], answers
assert answers[1]["generation_settings"]["dry_sequence_breakers"] == ["\n", "m and"], answers[1]
P
fi
finish
