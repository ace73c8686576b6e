#!/usr/bin/env bash
# Lines that users of ollama, llama.cpp, LM Studio and vLLM type, with quern for the program's name: each works, or one line says what
# to type. Nothing waits for input, and nothing loads a model that was not named.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
start_hub
answer='Hé 世🙂!'
n_lines=0

# works ARGS... - the line must succeed.
works() {
    n_lines=$((n_lines + 1))
    quern "$@" </dev/null
    [ $status -eq 0 ] || fail "quern $*: status $status"
}

# says PATTERN ARGS... - the line must be refused at once, with one line that matches PATTERN.
says() {
    local pattern=$1
    shift
    n_lines=$((n_lines + 1))
    quern "$@" </dev/null
    { [ $status -eq 1 ] || [ $status -eq 2 ]; } || fail "quern $*: status $status"
    [ ! -s "$work/out" ] || fail "quern $*: printed something on standard output"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "quern $*: expected one line on standard error"
    grep -q -e "^quern: .*$pattern" "$work/err" || fail "quern $*: the error does not match '$pattern'"
}

# serves ARGS... - the server must become ready, and end when it is told to.
serves() {
    n_lines=$((n_lines + 1))
    starts "$work/out" "$work/err" "$@"
    [ "$url" ] || fail "quern serve $*: not ready"
    stops "quern serve $*"
}

# ---- ollama ----
says 'OWNER/REPO' run llama3.2 "hi"
says "llama3.2.*-m with .*OWNER/REPO.*-p" run llama3.2
says 'OWNER/REPO.*-p' run qwen3:8b
says 'OWNER/REPO.*quern list' run -m mistral -p hi
says '-m t/parrot, or -p t/parrot' run t/parrot
works run t/parrot "hi"
[ "$(cat "$work/out")" = "$answer" ] || fail "run OWNER/REPO PROMPT"
works run hf.co/t/parrot:F16 "hi" --verbose
works run https://huggingface.co/t/parrot "hi"
works run t/parrot@main:F16 "hi"
says '--json-schema' run t/parrot "hi" --format json
says '--models-stay' run t/parrot "hi" --keepalive 5m
says '--reasoning' run t/parrot "hi" --think
says 'OWNER/REPO' pull llama3.2
works pull hf.co/t/parrot
works ls
grep -q t/parrot:parrot-F16.gguf "$work/out" || fail "ls"
works show t/parrot
says 'nothing runs in the background.*/v1/models' ps
says 'Ctrl-C or SIGTERM' stop llama3.2
says 'quern convert or quern quantize' create mine -f Modelfile
says '--alias' cp a b
says 'hf upload' push me/mine
says 'OWNER/REPO' rm llama3.2
says 'OWNER/REPO' serve llama3.2
says 'OWNER/REPO.*-p' chat llama3.2

says 'leave it out' show t/parrot --modelfile
says 'quern run, or quern chat' llama-cli -m "$parrot"
says 'quern serve' llama-server -m "$parrot" --port 8080
says 'leave the word out' ollama run t/parrot

# ---- LM Studio ----
works get t/parrot
works ls
says '--format json' ls --json
says 'use one of them with -m' load t/parrot
says 'Ctrl-C' unload --all
says 'quern serve' server start --port 1234
says '/health' status
says '/health' server status
says 'Ctrl-C' server stop
says 'quern bench-serve' chat --url http://localhost:8000/v1
says '-m FILE' import model.gguf
works chat t/parrot -p "hi"
says '-c' serve t/parrot --context-length 4096
says '--device cuda' serve t/parrot --gpu max
says '--alias' serve t/parrot --identifier mine

# ---- llama-cli ----
works run -m "$parrot" -p hi -n 3 -c 100 -t 2 --temp 0.5 --top-k 40 -s 7
works run -hf t/parrot:F16 -p hi -n 3
works run -m "$parrot" -p hi -n 3 --seed -1 --no-warmup -no-cnv --jinja --no-display-prompt --simple-io
works run -m "$parrot" -p hi -n 3 --repeat-penalty 1.1 --predict 2 --ctx-size 100 --threads 1
works chat -m "$parrot" -cnv -i -p hi
works run -m "$golden/qwen3.f16.gguf" --help
says '--device cuda' run -m "$parrot" -p hi -ngl 99
says '--device cuda' run -m "$parrot" -p hi --gpu-layers 99
says 'leave it out' run -m "$parrot" -p hi -fa on
says '--chat, or quern chat' run -m "$parrot" -p hi -cnv
says 'quern chat' run -m "$parrot" -i
says '--system' run -m "$parrot" -p hi -sys "Be brief."
says '--stop' run -m "$parrot" -p hi -r User:
says '--kv' run -m "$parrot" -p hi -ctk q8_0
says '--batch' run -m "$parrot" -p hi -b 512
says '--load' run -m "$parrot" -p hi --prompt-cache cache
says 'OWNER/REPO:FILE' run -hf t/parrot -hff parrot-F16.gguf -p hi
says 'huggingface.co/OWNER' run -mu https://example.com/m.gguf -p hi
says 'quern run -m' -m "$parrot" -p hi
works run -m "$parrot" -p hi -n 3 --grammar 'root ::= "H" [^x]*'
works bench -m "$parrot" -p 8 -n 4 -r 1
says '--device cuda' bench -m "$parrot" -p 8 -n 4 -r 1 -ngl 99
works perplexity -m "$parrot" -f "$QN_SOURCE_DIR/README.md" -c 64 --limit-bytes 1000
works quantize "$golden/qwen3.f16.gguf" "$work/q.gguf" Q8_0
says 'use -t 4' quantize "$golden/qwen3.f16.gguf" "$work/q.gguf" Q8_0 4
says 'expected one of f16 .* q4_0' quantize "$golden/qwen3.f16.gguf" "$work/q.gguf" Q4_K_M
says 'leave it out' quantize --imatrix imatrix.dat "$golden/qwen3.f16.gguf" "$work/q.gguf" Q8_0
says '--limit-bytes' perplexity -m "$parrot" -f "$QN_SOURCE_DIR/README.md" --chunks 2
says 'one value at a time' bench -m "$parrot" -t 1,2
says '--format json' bench -m "$parrot" -o md

# ---- llama-server ----
serves -m "$parrot" -c 100 -np 2 --host 127.0.0.1 -cb --metrics --jinja -t 2 -a mine
serves -hf t/parrot --no-ui --api-key key --seed -1
says '--device cuda' serve -m "$parrot" --port 0 -ngl 99
says 'leave it out' serve -m "$parrot" --port 0 -fa on
says 'No such file' serve -m "$parrot" --port 0 --chat-template-file "$work/none.jinja"
serves -m "$parrot" --embedding --slots
says '--pooling' serve -m "$parrot" --port 0 --pooling max
says '--no-page' serve -m "$parrot" --port 0 --no-webui
says 'API key\|--api-key\|--allow-unauthenticated' serve -m "$parrot" --port 0 --host 0.0.0.0

# ---- vLLM ----
serves t/parrot --enable-prefix-caching --enable-auto-tool-choice
says '-c' serve t/parrot --max-model-len 4096
says '--device cuda' serve t/parrot --tensor-parallel-size 2
says '--device cuda' serve t/parrot -tp 2
says '--memory' serve t/parrot --gpu-memory-utilization 0.9
says '--parallel' serve t/parrot --max-num-seqs 16
says '--alias' serve t/parrot --served-model-name mine
says 'quern quantize' serve t/parrot --dtype bfloat16
says '--kv' serve t/parrot --kv-cache-dtype fp8
says '@REVISION' serve t/parrot --revision main
says 'leave it out' serve t/parrot --tool-call-parser hermes
says 'leave it out' serve t/parrot --trust-remote-code
says 'leave it out' serve t/parrot --enforce-eager
says 'quern batch IN' run-batch -i in.jsonl -o out.jsonl --model t/parrot
says 'quern run' complete --quick hi
says 'quern bench-serve' bench serve --model t/parrot --num-prompts 10
says 'quern bench ' bench latency --model t/parrot --input-len 32
[ $n_lines -ge 80 ] || fail "only $n_lines lines"

# ---- A message for chat ----
gives "$answer"$'\n' chat -m "$parrot" -q hello
gives "$answer"$'\n' chat "$parrot" -q hello
[ "$(printf 'again\n' | "$QN_BIN/quern" chat "$parrot" -q hello)" = "$answer"$'\n'"$answer" ] || fail "chat: no second message"
says 'unexpected argument' chat "$parrot" "$parrot"
says "unexpected argument 'more'" chat "$parrot" -p hello more

# ---- Standard input and output of batch ----
request='{"custom_id":"a","url":"/v1/completions","body":{"prompt":"x","max_tokens":3}}'
printf '%s\n' "$request" | "$QN_BIN/quern" batch -m "$parrot" - - >"$work/out" 2>"$work/err" || fail "batch - -: status $?"
{ [ "$(wc -l <"$work/out")" -eq 1 ] && grep -q '"custom_id": *"a"' "$work/out"; } || fail "batch - -"
printf '%s\n' "$request" >"$work/in.jsonl"
quern batch -m "$parrot" - "$work/out.jsonl" <"$work/in.jsonl"
{ [ $status -eq 0 ] && [ ! -s "$work/out" ] && [ -s "$work/out.jsonl" ]; } || fail "batch - OUT"
echo nonsense | "$QN_BIN/quern" batch -m "$parrot" - - >"$work/out" 2>"$work/err" && fail "batch - -: nonsense"
grep -q 'standard input: none of its 1 requests was answered; see standard output' "$work/err" || fail "batch - -: no error"
says '--resume' batch -m "$parrot" --resume - -

# ---- Schemas on the command line ----
quern run -m "$parrot" -p x -n 30 --json-schema '{"enum": ["yes"]}' -q
{ [ $status -eq 0 ] && [ "$(cat "$work/out")" = '"yes"' ]; } || fail "--json-schema '{...}'"
quern run -m "$parrot" -p x --json-schema '{"type":"object","unknown":1,"minLength":{}}' -q
{ [ $status -eq 1 ] && grep -q '^quern: --json-schema: ' "$work/err"; } || fail "a schema that is none"
quern run -m "$parrot" -p x --grammar 'root ::= other' -q
{ [ $status -eq 1 ] && grep -q '^quern: --grammar: ' "$work/err"; } || fail "a grammar that is none"

# ---- Seeds ----
quern run -m "$parrot" -p x --seed -1
first=$(grep -o 'seed [0-9]*' "$work/err")
quern run -m "$parrot" -p x --seed -1
{ [ -n "$first" ] && [ "$first" != "$(grep -o 'seed [0-9]*' "$work/err")" ]; } || fail "--seed -1: $first"

# ---- serve on a terminal ----
if command -v script >/dev/null; then
    mkfifo "$work/keys"
    : >"$work/out"
    timeout 60 script -qfec "$(printf 'exec %q serve -m %q --port 0' "$QN_BIN/quern" "$parrot")" /dev/null <"$work/keys" >"$work/out" 2>&1 &
    terminal=$!
    exec 8>"$work/keys"
    for _ in {1..300}; do
        ! grep -q 'Ctrl-C stops' "$work/out" || break
        sleep 0.1
    done
    url=$(sed -n 's/^listening on \([^[:space:]]*\).*/\1/p' "$work/out")
    grep -q "^chat page: $url/ in a browser" "$work/out" || fail "serve on a terminal: no page"
    grep -q "^API: $url/v1 as OpenAI's" "$work/out" || fail "serve on a terminal: no API"
    python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health").read()' "$url"
    for _ in {1..50}; do
        ! grep -q 'GET /health' "$work/out" || break
        sleep 0.1
    done
    grep -qE '^[0-9]{2}:[0-9]{2}:[0-9]{2} GET /health 200, [0-9.]+ s, 127.0.0.1' "$work/out" || fail "serve on a terminal: no line of text"
    printf '\003' >&8
    exec 8>&-
    wait $terminal || fail "serve on a terminal: Ctrl-C: status $?"
fi
starts "$work/out" "$work/err" -m "$parrot" --log-format text
! grep -q 'chat page' "$work/out" || fail "serve: a greeting in a pipe"
python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1] + "/health").read()' \
    "$url"
stops "serve --log-format text"
grep -q 'GET /health 200' "$work/err" || fail "--log-format text"
says "--log-format: 'xml' is not one of text, json" serve -m "$parrot" --log-format xml
finish
