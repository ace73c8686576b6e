#!/usr/bin/env bash
# Models on a GPU, where there is one: logits within 4e-2 of the CPU's for all tokens at once and one by one, the same bits twice,
# sessions saved on a GPU go on there and on the CPU, and the other way round, and a benchmark reports the read bandwidth of the GPU.
. "$(dirname "$0")/lib_cli.sh"

needs_gpu

# file_of MODEL - of a golden one by its name, or of the one that comes with quern.
file_of() {
    [ "$1" = demo ] && echo "$QN_SOURCE_DIR/models/quern-demo.gguf" || echo "$golden/$1.gguf"
}

# logits MODEL OUT ARGS...
logits() {
    local model=$1 out=$2
    shift 2
    quern logits -m "$(file_of $model)" --ids "$ids" -o "$work/$out" "$@"
    [ $status -eq 0 ] || fail "logits of $model $*"
}

# distance A B - ||A - B|| / ||B|| of two files of floats.
distance() {
    paste <(od -An -v -f -w4 "$work/$1") <(od -An -v -f -w4 "$work/$2") |
        awk '{ d += ($1 - $2) ^ 2; n += $2 ^ 2 } END { if (n > 0) print sqrt(d / n); else print 1 }'
}

# expect_near A WHAT - A is within 4e-2 of the CPU's.
expect_near() {
    local d
    d=$(distance "$1" cpu)
    [[ $d =~ ^[0-9.e+-]+$ ]] && awk "BEGIN { exit !($d <= 0.04) }" || fail "$2: $1 is $d away from the CPU"
}

ids=$(seq 1 150 | awk '{ print ($1 * $1 * 7 + $1) % 71 }' | paste -s -d,)
for model in llama.q1_0 llama.ptq1_0 qwen2.q1_0 qwen3.f16 qwen3-yarn.f16 qwen3.pq2_0 qwen35.q1_0 qwen35-rotated.pq2_0 demo; do
    logits $model cpu --device cpu
    logits $model all --device cuda
    logits $model one --device cuda --batch 1
    logits $model again --device cuda
    QN_CUDA=launches logits $model launches --device cuda --batch 1
    for run in all one launches; do
        expect_near $run $model
    done
    cmp -s "$work/all" "$work/again" || fail "$model: two runs differ"
done

# Heads of 64 values can be kept as codes.
for kv in f16 aura4 aura3; do
    for model in qwen2.q1_0 qwen3.f16; do
        logits $model cpu --device cpu --kv $kv
        logits $model one --device cuda --kv $kv --batch 1
        expect_near one "$model, $kv"
    done
done

# text OUT ARGS... - what a run says.
text() {
    local out=$1
    shift
    quern run -m "$parrot" -p "once upon a" -n 40 --ignore-eos -q --device cuda "$@"
    [ $status -eq 0 ] || fail "run $*"
    cp "$work/out" "$work/$out"
}

# The same seed says the same, and others something else; drawing from one token is to be greedy.
text seed --temp 0.8 --seed 7
text seed_again --temp 0.8 --seed 7
cmp -s "$work/seed" "$work/seed_again" || fail 'a seed says something else the second time'
text hot --temp 5 --top-k 0 --top-p 1 --min-p 0 --seed 1
text hot_too --temp 5 --top-k 0 --top-p 1 --min-p 0 --seed 2
! cmp -s "$work/hot" "$work/hot_too" || fail 'two seeds say the same'
text greedy --temp 0
text one --temp 2 --top-p 0.000001 --top-k 0 --min-p 0
cmp -s "$work/greedy" "$work/one" || fail 'sampling with a top-p of almost 0 differs from greedy decoding'

quern run -m "$parrot" -p "once upon a" -n 8 --temp 0 --device cuda --save "$work/session"
[ $status -eq 0 ] || fail 'run --save on the GPU'
quern run -m "$parrot" -p "and then" -n 8 --temp 0 --device cuda --load "$work/session"
[ $status -eq 0 ] || fail 'run --load on the GPU'
quern run -m "$parrot" -p "and then" -n 8 --temp 0 --device cpu --load "$work/session" --save "$work/from-cpu"
[ $status -eq 0 ] || fail 'run --load on the CPU, of a file from the GPU'
quern run -m "$parrot" -p "and then" -n 8 --temp 0 --device cuda --load "$work/from-cpu"
[ $status -eq 0 ] || fail 'run --load on the GPU, of a file from the CPU'

# The rate that decoding is held against is measured on the device: no GPU that runs this reads less than 10 GB/s, or 100 TB/s.
quern bench -m "$golden/qwen35.q1_0.gguf" -p 8 -n 4 -r 2 --device cuda --format json
[ $status -eq 0 ] || fail 'bench on the GPU'
[ "$(grep -cE '"device":"cuda:0".*"bytes_per_token":[1-9][0-9]*,"read_gb_per_s":[0-9]{2,5}\.[0-9]+,' "$work/out")" -eq 2 ] || fail 'bench on the GPU: no read rate'

# Sampled, and under a schema whose documents are short: all have their tokens.
printf '{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": false}' >"$work/schema.json"
for how in '-d 130' '--parallel 1,3'; do
    quern bench -m "$QN_SOURCE_DIR/models/quern-demo.gguf" -p 8 -n 60 -r 2 --temp 1 --top-k 0 --top-p 1 --min-p 0 --json-schema "$work/schema.json" $how \
        --device cuda --format json
    [ $status -eq 0 ] || fail "bench on the GPU, sampled, $how"
    [ "$(grep -cE '^\{"test":"tg60 (sampled|schema)",.*"sampling":\{"temperature":1,.*"of_free":[0-9.]+,' "$work/out")" -eq $((2 * (1 + (${#how} > 6)))) ] ||
        fail "bench on the GPU, sampled, $how: its rows"
done

finish
