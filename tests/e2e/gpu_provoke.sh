#!/usr/bin/env bash
# Faults of order on a GPU, which need luck, made certain (docs/internals/gpu-faults.md): requests, constrained and not, in steps of 1, 8, 33
# and 128 rows with poisoned memory and delayed work, and of four processes at once. With --deterministic each answer has the bits of a
# process alone. Skipped without a GPU. QN_GPU_MODEL is another model, QN_GPU_ROUNDS the rounds of four processes (1).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
needs_gpu
model=${QN_GPU_MODEL:-$QN_SOURCE_DIR/models/quern-demo.gguf}

python3 - "$work/in.jsonl" <<'EOF'
import json, sys
schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "count": {"type": "integer"}, "good": {"type": "boolean"}},
          "required": ["name", "count", "good"], "additionalProperties": False}
with open(sys.argv[1], "w") as file:
    for i in range(160):
        body = {"messages": [{"role": "user", "content": f"Item {i}: " + "what is it called, and how many are there? " * (i % 7)}],
                "temperature": [0, 0.8, 1.5][i % 3], "seed": i, "max_tokens": 6 + i % 40}
        if i % 2:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "item", "schema": schema}}
        if i % 5 == 0:
            body.update(logprobs=True, top_logprobs=3)
        file.write(json.dumps({"custom_id": str(i), "url": "/v1/chat/completions", "body": body}) + "\n")
EOF

# answer OUT ARGS... - the answers of a process, one a line; an error is an answer too.
answer() {
    local out=$1
    shift
    rm -f "$out.jsonl"
    timeout 500 "$QN_BIN/quern" batch -m "$model" -c 1024 --device cuda --ordered --deterministic -q "$@" "$work/in.jsonl" "$out.jsonl" 2>"$out.err"
    python3 - "$out.jsonl" >"$out" <<'EOF'
import json, sys
for line in open(sys.argv[1]):
    line = json.loads(line)
    print(line["custom_id"], json.dumps(line["response"]["body"]["choices"] if line.get("response") else line["error"]))
EOF
}

# expect_same OUT WHAT
expect_same() {
    cmp -s "$work/alone" "$1" || {
        fail "$2: $(diff "$work/alone" "$1" | grep -c '^>') of 160 answers differ"
        diff "$work/alone" "$1" | head -n 4 | cut -c 1-300
        head -n 3 "$1.err"
    }
}

answer "$work/alone" --parallel 16
[ "$(grep -c '"finish_reason"' "$work/alone")" -eq 160 ] || fail "alone: $(head -c 300 "$work/alone.err")"
for rows in 1 8 33 128; do
    answer "$work/plain" --parallel $rows
    expect_same "$work/plain" "$rows rows"
    QN_CUDA_POISON=1 answer "$work/poison" --parallel $rows
    expect_same "$work/poison" "$rows rows, poison"
    QN_CUDA_DELAY=20 answer "$work/delay" --parallel $rows
    expect_same "$work/delay" "$rows rows, delay"
done
QN_CUDA=launches QN_CUDA_POISON=1 answer "$work/launches" --parallel 8
expect_same "$work/launches" 'launches, poison'
for ((round = 0; round < ${QN_GPU_ROUNDS:-1}; round++)); do
    for i in 1 2 3 4; do
        answer "$work/at-once-$i" --parallel 64 &
    done
    wait
    for i in 1 2 3 4; do
        expect_same "$work/at-once-$i" "four at once, round $round"
    done
done

for program in test_gpu_random test_gpu_sessions; do
    [ -x "$QN_BIN/tests/$program" ] || continue
    QN_CUDA_POISON=1 timeout 500 "$QN_BIN/tests/$program" >"$work/out" 2>"$work/err" || fail "$program with poison"
    QN_CUDA_DELAY=20 timeout 500 "$QN_BIN/tests/$program" >"$work/out" 2>"$work/err" || fail "$program with delays"
done
finish
