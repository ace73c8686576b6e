#!/usr/bin/env bash
# SmolLM2, where tools/fetch_smollm2.py has fetched it: coherent text, memory, quantising to Q8_0, and Ctrl-C while quantising.
. "$(dirname "$0")/lib_cli.sh"
model=${XDG_CACHE_HOME:-$HOME/.cache}/quern/smollm2-135m-instruct-q4_1.gguf
[ -e "$model" ] || exit 77
[ -z "${QN_SANITIZE:-}" ] || exit 77 # a checked build would take minutes, and small models cover the same code

quern run -m "$model" --temp 0 -n 8 -p 'The capital of France is' -q
grep -q Paris "$work/out" || fail "run: the capital of France"

# A conversation is the same tokens as the whole of it given at once: greedy answers must agree.
system='You are a helpful AI assistant named SmolLM, trained by Hugging Face' # what the model's template begins with by itself
prompt="<|im_start|>system
$system<|im_end|>
"
printf 'Name a fruit.\nName another one.\n' >"$work/lines"
quern chat -m "$model" --temp 0 -n 40 -q <"$work/lines"
mv "$work/out" "$work/chat"
for turn in 'Name a fruit.' 'Name another one.'; do
    prompt+="<|im_start|>user
$turn<|im_end|>
<|im_start|>assistant
"
    quern run -m "$model" --temp 0 -n 40 -q -p "$prompt"
    cat "$work/out" >>"$work/whole"
    echo >>"$work/whole"
    prompt+="$(cat "$work/out")<|im_end|>
"
done
cmp -s "$work/chat" "$work/whole" || fail "chat: other answers than from the whole conversation: $(diff "$work/chat" "$work/whole")"

# The same in two runs of the program, and a text that continues where another run has stopped.
{ quern chat -m "$model" --temp 0 -n 40 -q --save "$work/s" < <(head -n 1 "$work/lines") && cat "$work/out"; } >"$work/parts"
{ quern chat -m "$model" --temp 0 -n 40 -q --load "$work/s" < <(tail -n 1 "$work/lines") && cat "$work/out"; } >>"$work/parts"
cmp -s "$work/parts" "$work/chat" || fail "chat --load: other answers than without a pause"
{ quern run -m "$model" --temp 0 -n 40 -q --load "$work/s" --chat -p 'Name another one.' </dev/null && cat "$work/out"; } >"$work/part"
echo >>"$work/part"
cmp -s "$work/part" <(tail -n "$(wc -l <"$work/part")" "$work/chat") || fail "run --chat --load: another answer than chat's"
quern run -m "$model" --temp 0 -n 60 --ignore-eos -q -p 'Once upon a time there was a mill'
mv "$work/out" "$work/whole"
quern run -m "$model" --temp 0 -n 0 -q -p 'Once upon a time' --save "$work/s"
quern run -m "$model" --temp 0 -n 25 --ignore-eos -q -p ' there was a mill' --load "$work/s" --save "$work/s"
mv "$work/out" "$work/parts"
quern run -m "$model" --temp 0 -n 35 --ignore-eos -q --load "$work/s" -t 1 -p ''
cat "$work/out" >>"$work/parts"
cmp -s "$work/parts" "$work/whole" || fail "run --load: not the text of one run: $(diff "$work/parts" "$work/whole")"

# Peak memory at most 1.15 times the file and the cache of the positions in use, 30 layers x 3 heads x 64 x 2 x 2 bytes each, and 8 MiB
# for the program and its libraries.
quern run -m "$model" --temp 0 -n 100 --ignore-eos -p 'Once upon a time'
peak=$(sed -n 's/.*peak memory \([0-9.]*\) MiB.*/\1/p' "$work/err")
awk -v peak="$peak" -v file="$(stat -c %s "$model")" 'BEGIN { exit !(peak > 0 && (peak - 8) * 1048576 <= 1.15 * (file + 104 * 30 * 3 * 64 * 4)) }' ||
    fail "run: peak memory of $peak MiB"

# Q8_0 is nearly what it was made from. The bar is half a percent on a long text; on this short one, which is always there, rounding the
# activations alone moves the figure by about that, so the bound here only tells a right conversion from a wrong one.
quern quantize "$model" "$work/q8.gguf" q8_0
[ $status -eq 0 ] || fail "quantize"
for file in "$model" "$work/q8.gguf"; do
    quern perplexity -m "$file" -f "$QN_SOURCE_DIR/LICENSE" --limit-bytes 5000
    sed -n 's/^perplexity: \([0-9.]*\) .*/\1/p' "$work/out" >>"$work/perplexities"
done
awk 'NR == 1 { a = $1 } NR == 2 { b = $1 } END { exit !(NR == 2 && a > 1 && b / a < 1.02 && b / a > 0.98) }' "$work/perplexities" ||
    fail "perplexity before and after Q8_0: $(xargs <"$work/perplexities")"

# Stopped, quantising leaves the target as it was, and nothing beside it.
mkdir "$work/stopped"
cp "$QN_SOURCE_DIR/models/quern-demo.gguf" "$work/stopped/q8.gguf"
timeout --foreground --preserve-status -s INT 0.2 "$QN_BIN/quern" quantize "$model" "$work/stopped/q8.gguf" q8_0 >/dev/null 2>&1
status=$?
if [ $status -ne 0 ]; then # on a fast machine it may be over by then
    [ $status -eq 130 ] || fail "quantize: status $status after Ctrl-C"
    cmp -s "$work/stopped/q8.gguf" "$QN_SOURCE_DIR/models/quern-demo.gguf" || fail "quantize: Ctrl-C changed the target"
    [ "$(ls -A "$work/stopped")" = q8.gguf ] || fail "quantize: Ctrl-C left $(ls -A "$work/stopped")"
fi
finish
