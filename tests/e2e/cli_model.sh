#!/usr/bin/env bash
# The program on small models: run, chat, logits, bench, perplexity, quantize and info do what their help says.
. "$(dirname "$0")/lib_cli.sh"
model=$golden/qwen3.f16.gguf

# ---- run: the parrot says the same thing after any prompt ----
gives 'Hé 世🙂!' run -m "$parrot" -p 'x'
gives 'Hé 世🙂!' run -m "$parrot" -p 'x' --temp 0 -q
gives 'Hé 世🙂!' run -m "$parrot" --chat -p 'x' --system 'y'
gives 'H' run -m "$parrot" -p x -n 1
gives '' run -m "$parrot" -p x -n 0
gives 'Hé ' run -m "$parrot" -p x --stop 世
gives 'Hé 世' run -m "$parrot" -p x --stop nothing --stop '🙂'
gives 'Hé 世🙂!Hé' run -m "$parrot" -p x --ignore-eos -n 16
printf 'some text' >"$work/prompt"
gives 'Hé 世🙂!' run -m "$parrot" -f "$work/prompt"
[ "$(printf 'some text' | "$QN_BIN/quern" run -m "$parrot" -q)" = 'Hé 世🙂!' ] || fail "run: a prompt on standard input"
# The text is cut inside a character: what comes out is still UTF-8.
for n in 2 5 6 8 9 10; do
    quern run -m "$parrot" -p x -n $n
    iconv -f UTF-8 -t UTF-8 "$work/out" >/dev/null 2>&1 || fail "run -n $n: not UTF-8"
done
quern run -m "$parrot" -p 'x' --seed 7
grep -qE '^quern: prompt 1 tokens, .* tok/s; generated 13 tokens, .* tok/s; peak memory .*; seed 7; end of text$' "$work/err" ||
    fail "run: the line with the speed"
quern run -m "$parrot" -p 'x' -q
[ ! -s "$work/err" ] || fail "run -q: printed something on standard error"
for command in "run -p x" "bench -p 8 -n 0 -r 1"; do
    quern $command -m "$model" -v --memory 8M
    grep -qE '^quern: memory for contexts 8.0 MiB: .* a position, .* a sequence; fits 1 sequence of [1-9][0-9]* tokens, or 8 of [1-9][0-9]* each$' \
        "$work/err" || fail "$command --verbose"
done
# Memory that holds fewer tokens in f16 than are wanted: codes are used, and said; unless a format is given.
quern run -m "$QN_SOURCE_DIR/models/quern-demo.gguf" --device cpu -p hello -n 1 --memory 18M -c 4000
grep -qE '^quern: note: the memory holds [0-9]+ tokens of context in f16, [0-9]+ in aura8, which is used; ' "$work/err" ||
    fail "run: codes where f16 does not fit"
for options in "-c 2000" "-c 4000 --kv f16" "-c 4000 -q"; do
    quern run -m "$QN_SOURCE_DIR/models/quern-demo.gguf" --device cpu -p hello -n 1 --memory 18M $options
    { [ $status -eq 0 ] && ! grep -q 'which is used' "$work/err"; } || fail "run $options: another format"
done
# The context fills: that is success, and said.
quern run -m "$parrot" -p 'x' -c 8 --ignore-eos
{ [ $status -eq 0 ] && grep -q 'context full' "$work/err"; } || fail "run: a full context"
# A reader that goes away is no error. The text is longer than what a pipe holds: a slow reader does not find it complete.
"$QN_BIN/quern" run -m "$parrot" -p x --ignore-eos -c 200000 -n 100000 2>"$work/err" | head -c 3 >/dev/null
[ "${PIPESTATUS[0]}" -eq 0 ] && ! grep -v 'more than the 1024' "$work/err" || fail "run: a closed pipe"
# A signal stops it; the program ends by the signal, and what was printed is whole. (In the background timeout would signal its
# whole group, and so the program twice.)
timeout --foreground --preserve-status -s INT 2 "$QN_BIN/quern" run -m "$parrot" -p x --ignore-eos -c 10000000 >"$work/out" 2>"$work/err"
[ $? -eq 130 ] || fail "run: Ctrl-C does not end it by the signal"
iconv -f UTF-8 -t UTF-8 "$work/out" >/dev/null 2>&1 || fail "run: interrupted inside a character"
[ ! -s "$work/out" ] || grep -q 'interrupted' "$work/err" || fail "run: does not say that it was interrupted"

# ---- chat ----
printf 'first\n/help\n/reset\nsecond\n/system z\nthird\n/exit\nnever read\n' >"$work/lines"
quern chat -m "$parrot" -q <"$work/lines"
[ $status -eq 0 ] || fail "chat: status $status"
[ "$(cat "$work/out")" = $'Hé 世🙂!\nHé 世🙂!\nHé 世🙂!' ] || fail "chat: the answers"
# A full context drops the oldest turns, and a reset empties it.
printf 'one\ntwo\nthree\n/reset\nfour\n' >"$work/lines"
quern chat -m "$parrot" -q -c 100 <"$work/lines"
[ "$(grep -c 'Hé 世🙂!' "$work/out")" -eq "$(grep -vc '^/' "$work/lines")" ] || fail "chat: a full context ends the conversation"
[ "$(tail -n 1 "$work/out")" = 'Hé 世🙂!' ] || fail "chat: no answer after /reset"

# ---- sessions: a saved session continues where it was, whatever came last ----
quern run -m "$parrot" -p x -n 4 -q --save "$work/s"
{ [ $status -eq 0 ] && [ "$(cat "$work/out")" = 'Hé ' ]; } || fail "run --save"
gives '世🙂!' run -m "$parrot" -q --load "$work/s"                         # the pending token alone
gives '世🙂!' run -m "$parrot" -q --load "$work/s" -p '' -c 20 --batch 1
gives 'Hé 世🙂!' run -m "$parrot" -q --load "$work/s" -p y
quern run -m "$parrot" -q --load "$work/s" --save "$work/s"                # over the file it came from, to the end of the text
gives 'Hé 世🙂!' run -m "$parrot" -q --load "$work/s"                      # which is the pending token now
gives 'Hé 世🙂!' run -m "$parrot" -q --load "$work/s" --chat -p y
gives '' run -m "$parrot" -q -n 0 -p 'xH' --save "$work/s"
gives 'é 世🙂!' run -m "$parrot" -q --load "$work/s"                       # nothing pending: the last token's logits again
for session in --save "--load $work/s --save" "--load $work/s --save"; do
    # shellcheck disable=SC2086
    printf 'one\ntwo\n' | "$QN_BIN/quern" chat -m "$parrot" -q $session "$work/s" >"$work/out" 2>"$work/err" || fail "chat $session"
    [ "$(cat "$work/out")" = $'Hé 世🙂!\nHé 世🙂!' ] || fail "chat $session: the answers"
done
[ "$(ls -A "$work" | grep -c '^\.s\.')" -eq 0 ] || fail "--save: left a temporary file"

# ---- logits: the same bits however the ids are given and however many threads ----
ids=$(head -n 24 "$golden/qwen3.f16.ids" | paste -sd,)
quern logits -m "$model" --ids "$ids" -o "$work/all" -t 1
[ $status -eq 0 ] || fail "logits"
[ "$(stat -c %s "$work/all")" -eq $((24 * 320 * 4)) ] || fail "logits: the size is not [24, 320] floats"
for how in '--batch 1' '--batch 7 -t 2' '-t 7' '--batch 24 -t 2' '--batch 100'; do
    # shellcheck disable=SC2086
    quern logits -m "$model" --ids "$ids" -o "$work/other" $how
    cmp -s "$work/all" "$work/other" || fail "logits $how: other bits"
done
quern logits -m "$model" --ids "${ids//,/ }" -o "$work/other"
cmp -s "$work/all" "$work/other" || fail "logits: ids separated by spaces"
ln -s other "$work/link"
quern logits -m "$model" --ids 1 -o "$work/link"
{ [ -L "$work/link" ] && [ "$(stat -c %s "$work/other")" -eq 1280 ]; } || fail "logits: a link was replaced"
quern logits -m "$model" --ids 1 -o /dev/stdout
[ "$(stat -c %s "$work/out")" -eq 1280 ] || fail "logits: writing into something that is no regular file"

# ---- bench ----
quern bench -m "$model" --parallel 1,3 -p 8 -n 4 -r 2 --format json
{ [ $status -eq 0 ] && [ "$(grep -oE '^\{"test":"(pp8","n_tokens":8,"depth":0|tg4","n_tokens":4,"depth":8),.*"parallel":[13],"tok_per_s"' "$work/out" | wc -l)" -eq 4 ]; } ||
    fail "bench --parallel"
quern bench -m "$model" --parallel 4 -p 8 -n 0 -r 1
{ [ $status -eq 0 ] && [ "$(grep -c '^4 x pp8 ' "$work/out")" -eq 1 ] && ! grep -q tg "$work/out"; } || fail "bench --parallel: the table"
printf '# prompt answer\n8 4\n\n12 6\n5 1\n20 9\n' >"$work/lengths"
for how in '--parallel 2' '--rate 50 --prefix-cache off'; do
    quern bench -m "$model" --soak "$work/lengths" $how --format json
    { [ $status -eq 0 ] && grep -qE '^\{"test":"soak","requests":4,.*"ttft_ms":\{"mean":.*"inter_token_ms":\{"mean":' "$work/out"; } ||
        fail "bench --soak $how"
done
quern bench -m "$model" --reuse 200,20 -n 4 -r 1 --format json
{ [ $status -eq 0 ] && grep -q '^{"test":"turn 2","n_tokens":224,"reused":192,"evaluated":32,' "$work/out" &&
    grep -q '^{"test":"shared 3","n_tokens":220,"reused":192,' "$work/out"; } || fail "bench --reuse"
quern bench -m "$model" --soak "$work/lengths" --parallel 3
{ [ $status -eq 0 ] && grep -q '^4 requests in ' "$work/out" && grep -q '^between tokens ' "$work/out"; } || fail "bench --soak: the table"
quern bench -m "$model" -p 8 -n 4 -d 3 -r 3 -t 2 --format json
[ $status -eq 0 ] || fail "bench: status $status"
[ "$(wc -l <"$work/out")" -eq 2 ] || fail "bench: expected one line a test"
number='[0-9]+(\.[0-9]+)?'
for test in 'pp8","n_tokens":8' 'tg4","n_tokens":4'; do
    grep -qE "^\{\"test\":\"$test,\"depth\":3,\"threads\":2,\"device\":\"cpu\",\"kv\":\"f16\",\"parallel\":1,\"tok_per_s\":\{\"median\":$number,\"min\":$number,\"max\":$number\},\"bytes_per_token\":[0-9]+,\"read_gb_per_s\":$number,(\"sampling\":null,\"json_schema\":null,\"of_free\":null,\"draft\":\"off\",\"accept\":null,\"drafted\":0,\"accepted\":0,\"tokens_per_step\":1.0000,)?\"peak_rss_bytes\":[0-9]+\}$" "$work/out" ||
        fail "bench: the JSON of $test"
done
quern bench -m "$model" -p 0 -n 4 -r 1
{ [ $status -eq 0 ] && grep -q '^tg4 ' "$work/out" && ! grep -q '^pp' "$work/out"; } || fail "bench: the table"

# ---- perplexity ----
# Bytes of the parrot's own text in its order are certain; only "!" is followed by something else than the end of the turn, and
# -log p of that is 24. A cycle is 12 bytes, so exp(24/12) = 7.389 over whole cycles; scored are the last 12 of 24 tokens.
printf 'Hé 世🙂!Hé 世🙂!' >"$work/text"
quern perplexity -m "$parrot" -f "$work/text" -c 24
grep -qE '^perplexity: 7\.(38|39)[0-9]* \+/- [0-9.]+ \(12 tokens\)$' "$work/out" || fail "perplexity of the parrot's text"
cat "$work/text" "$work/text" >"$work/twice"
quern perplexity -m "$parrot" -f "$work/twice" -c 24 --limit-bytes 30
grep -q '(12 tokens)' "$work/out" || fail "perplexity --limit-bytes"
quern perplexity -m "$parrot" -f - -c 24 <"$work/twice"
grep -q '(24 tokens)' "$work/out" || fail "perplexity of two pieces from standard input"
[ ! -s "$work/err" ] || fail "perplexity: something on standard error although it is no terminal"

# ---- quantize and info ----
quern quantize "$golden/llama.f16.gguf" "$work/q8.gguf" Q8_0
[ $status -eq 0 ] || fail "quantize"
quern info "$work/q8.gguf"
grep -qE '^ +q8_0 +[0-9]+ tensors' "$work/out" || fail "info: no total of q8_0"
quern quantize "$work/q8.gguf" "$work/q8.gguf" q4_0
quern info "$work/q8.gguf"
grep -qE '^ +q4_0 +[0-9]+ tensors' "$work/out" || fail "quantize onto the same file"
quern quantize --force -v "$model" "$work/narrow.gguf" q1_0
{ [ $status -eq 0 ] && grep -q 'note: .*attn_q' "$work/err"; } || fail "quantize: rows of 96 do not fit blocks of 128, and no note says so"
quern logits -m "$work/narrow.gguf" --ids 1,2 -o "$work/l"
[ $status -eq 0 ] || fail "logits of a file that quantize wrote"
quern info "$model"
grep -q 'qwen3.embedding_length = 96' "$work/out" && grep -qE 'f16 +\[96, 320\]  token_embd.weight' "$work/out" || fail "info"
quern info --plan "$model"
{ [ $status -eq 0 ] && grep -qE '^ +0 +-  embed .* >b0\[96\]; table f16\[96, 320\]$' "$work/out"; } || fail "info --plan: the embedding"
grep -qE '^ +9 +0  swiglu +0 B  prologue +gate b[0-9]+\[' "$work/out" || fail "info --plan: the first swiglu"
quern info --plan "$work/text"
[ $status -eq 1 ] || fail "info --plan of a text"
finish
