#!/usr/bin/env bash
# quern bench: greedy decoding, sampled decoding and decoding under a JSON schema are rows of one run, which say what they were sampled by.
# A schema whose documents are short is decoded as long as any text.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
cat >"$work/sch\"ema.json" <<'J'
{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
J
schema=$work/sch\"ema.json

# is EXPRESSION - of the lines of JSON on standard output, rows, by their names in r.
is() {
    [ $status -eq 0 ] && python3 - "$1" "$work" <<'P' || fail "$1"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[2] + "/out")]
r = {(row["parallel"], row["test"]): row for row in rows} if "parallel" in rows[0] else {}
one = {test: row for (n, test), row in r.items() if n == 1}
defaults = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1, "top_n_sigma": 0, "xtc_probability": 0, "xtc_threshold": 0.1, "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":", "\"", "*"],
             "repeat_penalty": 1, "repeat_last_n": 64, "frequency_penalty": 0,
            "presence_penalty": 0, "seed": 1}
sys.exit(not eval(sys.argv[1]))
P
}
measure() {
    quern bench -m "$demo" -t 1 -p 8 -n 24 -r 2 --format json "$@"
}

measure
is '[row["test"] for row in rows] == ["pp8", "tg24"] and one["tg24"]["sampling"] is None and one["tg24"]["of_free"] is None'
is '"sampling" not in one["pp8"] and one["tg24"]["json_schema"] is None and one["tg24"]["depth"] == 0'
measure -n 4 -r 1 --seed 3 # a seed alone samples nothing
is '[row["test"] for row in rows] == ["pp8", "tg4"]'
# Each option is reported by its name, the others with their defaults in run. (test_args: each alone makes tokens sampled.)
measure -p 0 -n 4 -r 1 --xtc-threshold 0.25
is 'one["tg4 sampled"]["sampling"] == {**defaults, "xtc_threshold": 0.25} and one["tg4"]["sampling"] is None and len(rows) == 2'
measure -p 0 -n 4 -r 1 --temp 1 --top-k 7 --top-p 0.5 --min-p 0.25 --repeat-penalty 1.5 --repeat-last-n 9 --frequency-penalty 0.75 \
    --presence-penalty 0.625 --typical 0.875 --top-n-sigma 1.25 --xtc-probability 0.125 --xtc-threshold 0.375 --mirostat 2 --mirostat-ent 4 \
    --mirostat-lr 0.0625 --dry-multiplier 0.1875 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n 11
is 'one["tg4 sampled"]["sampling"] == {**defaults, "temperature": 1, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "repeat_penalty": 1.5,
    "repeat_last_n": 9, "frequency_penalty": 0.75, "presence_penalty": 0.625, "typical_p": 0.875, "top_n_sigma": 1.25, "xtc_probability": 0.125,
    "xtc_threshold": 0.375, "mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.0625, "dry_multiplier": 0.1875, "dry_base": 2,
    "dry_allowed_length": 3, "dry_penalty_last_n": 11}'
measure -p 0 -n 4 -r 1 --dry-multiplier 0.5 --dry-sequence-breaker a --dry-sequence-breaker none --dry-sequence-breaker '"' --dry-sequence-breaker $'\n'
is 'one["tg4 sampled"]["sampling"] == {**defaults, "dry_multiplier": 0.5, "dry_sequence_breakers": ["\"", "\n"]}'
measure -p 0 -n 4 -r 1 --dry-sequence-breaker none # it alone
is 'one["tg4 sampled"]["sampling"] == {**defaults, "dry_sequence_breakers": []}'
measure -r 1 --temp 1 --top-k 0 --top-p 1 --min-p 0 --seed 18446744073709551615 --json-schema "$schema" -d 130
is '[row["test"] for row in rows] == ["pp8", "tg24", "tg24 sampled", "tg24 schema"] and all(row["depth"] == 130 for row in rows)'
is 'one["tg24 schema"]["sampling"] == one["tg24 sampled"]["sampling"] == {**defaults, "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 2**64 - 1}'
is 'one["tg24 schema"]["json_schema"].endswith("/sch\"ema.json") and one["tg24 sampled"]["json_schema"] is None'
is 'all(one["tg24" + t]["of_free"] > 0 and one["tg24" + t]["n_tokens"] == 24 for t in (" sampled", " schema"))'
# -n counts tokens of many documents, each of which takes 20 tokens or so of the demo model.
measure --json-schema "$schema" -n 300 -p 0 -r 1
is '[row["test"] for row in rows] == ["tg300", "tg300 schema"] and one["tg300 schema"]["sampling"] is None and one["tg300 schema"]["of_free"] > 0'
measure --json-schema "$schema" --json-whitespace compact --json-property-order any -n 60 -r 1 --parallel 1,3 --temp 1.5
is '[row["test"] for row in rows] == 2 * ["pp8", "tg60", "tg60 sampled", "tg60 schema"] and r[3, "tg60 schema"]["depth"] == 8'
is 'all(r[n, "tg60 schema"]["of_free"] > 0 and r[n, "tg60 sampled"]["sampling"]["temperature"] == 1.5 for n in (1, 3))'
measure --parallel 2 --top-k 3 -n 0
[ $status -eq 2 ] || fail "-n 0 with --top-k: status $status"

# The table says what the rows were sampled by.
quern bench -m "$demo" -t 2 -p 8 -n 24 -r 1 --top-k 5 --json-schema "$schema" --parallel 2
{ [ $status -eq 0 ] && [ "$(sed -n 1p "$work/out")" = 'sampled: temperature 0.8, top_k 5, top_p 0.95, min_p 0.05, typical_p 1, top_n_sigma 0, xtc_probability 0, xtc_threshold 0.1, mirostat 0, mirostat_tau 5, mirostat_eta 0.1, dry_multiplier 0, dry_base 1.75, dry_allowed_length 2, dry_penalty_last_n -1, repeat_penalty 1, repeat_last_n 64, frequency_penalty 0, presence_penalty 0, dry_sequence_breakers ["\n",":","\"","*"], seed 1' ] &&
    grep -q '^schema: sampled, .*ema.json$' "$work/out" && grep -q '^2 x tg24 sampled .* [0-9.]*$' "$work/out" && grep -q '^2 x tg24 schema ' "$work/out" &&
    grep -q '^2 x tg24 .* -$' "$work/out"; } || fail "the table"

# Requests that arrive in time are sampled alike.
printf '8 40\n12 50\n' >"$work/lengths"
quern bench -m "$demo" --soak "$work/lengths" --parallel 2 --temp 1 --json-schema "$schema" --format json
[ $status -eq 0 ] || fail "--soak: status $status"
python3 - "$work" <<'P' || fail "--soak"
import json, sys
r = json.load(open(sys.argv[1] + "/out"))
sys.exit(not (r["sampling"]["temperature"] == 1 and r["json_schema"] and r["tok_per_s"] * r["seconds"] > 89))
P
finish
