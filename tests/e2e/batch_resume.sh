#!/usr/bin/env bash
# quern batch is killed three times, wherever it is, and continued with --resume: each request is answered exactly once.
#
# QN_BATCH_REQUESTS=N: so many requests instead (make soak: 10000).
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_batch.sh"
sanitized=${QN_SANITIZE:+60}
count=${QN_BATCH_REQUESTS:-${sanitized:-150}}

# Some have two choices, some log probabilities.
extras=('' ',"n":2' '' '' ',"logprobs":1')
for ((i = 0; i < count; i++)); do
    line "request-$i" "{\"prompt\":\"Once upon a time there were $i\",\"max_tokens\":$((4 + i % 9))${extras[i % 5]}}"
done >"$work/in.jsonl"

touch "$work/out.jsonl"
lines() { wc -l <"$work/out.jsonl"; }
answer=("$QN_BIN/quern" batch -m "$demo" "$work/in.jsonl" "$work/out.jsonl" --resume)

for kill in 1 2 3; do
    "${answer[@]}" 2>"$work/err" &
    process=$!
    before=$(lines)
    while [ "$(lines)" -lt $((before + count / 6)) ] && kill -0 $process 2>/dev/null; do sleep 0.02; done
    kill -KILL $process
    wait $process 2>/dev/null
    after=$(lines)
    echo "killed with $after answers of $count"
    [ "$after" -gt "$before" ] && [ "$after" -lt "$count" ] || fail "killed the $kill. time: $after lines after $before"
    printf '{"id":"batch_req_9","custom_id":"requ' >>"$work/out.jsonl" # as if it had been killed while writing
done
"${answer[@]}" 2>"$work/err" || fail "--resume: status $?"
cmp -s <(value 'x["custom_id"]' <"$work/in.jsonl" | sort) <(value 'x["custom_id"]' <"$work/out.jsonl" | sort) ||
    fail "--resume: the answers are not one to each request: $(lines) lines"
[ "$(value 'x["error"]' <"$work/out.jsonl" | sort -u)" = None ] || fail "--resume: errors"
n_choices=$(value 'len(x["response"]["body"]["choices"])' <"$work/out.jsonl" | awk '{ n += $1 } END { print n }')
[ "$n_choices" -eq $((count + count / 5)) ] || fail "--resume: $n_choices choices"

# Answers depend neither on when they were evaluated nor on what with.
head -n 150 "$work/in.jsonl" >"$work/some.jsonl"
quern batch -m "$demo" -q "$work/some.jsonl" "$work/again.jsonl" --parallel 3 --ordered
[ $status -eq 0 ] || fail "--parallel 3: status $status"
choices='x["custom_id"], x["response"]["body"]["choices"]'
cmp -s <(value 'x["custom_id"]' <"$work/some.jsonl") <(value 'x["custom_id"]' <"$work/again.jsonl") || fail "--ordered"
[ -z "$(comm -13 <(value "$choices" <"$work/out.jsonl" | sort) <(value "$choices" <"$work/again.jsonl" | sort))" ] ||
    fail "answers depend on what they were evaluated with"
finish
