#!/usr/bin/env bash
# quern convert: a file that info, tokenize and logits read; types; what it does not write over; errors of one line.
. "$(dirname "$0")/lib_cli.sh"
checkpoints=$golden/checkpoints

for name in llama qwen2 qwen3 qwen35; do
    quern convert "$checkpoints/$name" "$work/$name.gguf"
    { [ $status -eq 0 ] && grep -q "^$work/$name.gguf, " "$work/out"; } || fail "convert $name"
    quern info "$work/$name.gguf"
    [ $status -eq 0 ] || fail "info of $name"
    quern logits -m "$work/$name.gguf" --ids "$(paste -sd, "$checkpoints/$name/golden.ids")" -o "$work/l"
    [ "$(stat -c %s "$work/l")" -eq "$(stat -c %s "$checkpoints/$name/golden.logits.f32")" ] || fail "logits of $name"
done
grep -q 'note: left out: .* image encoder' <(QN_DEVICE=cpu "$QN_BIN/quern" convert "$checkpoints/qwen35" "$work/q.gguf" 2>&1) ||
    fail "no note about the image encoder"
gives $'93 32 33\n' tokenize "$work/qwen2.gguf" --ids "~AB"

# The same file from a copy of a checkpoint under a relative name, with other threads.
cp -r "$checkpoints/qwen2" "$work/qwen2"
(cd "$work" && "$QN_BIN/quern" convert qwen2/ again.gguf -t 3 >/dev/null 2>&1) || fail "convert of a relative folder"
cmp -s "$work/again.gguf" "$work/qwen2.gguf" || fail "a relative folder gives another file"

quern convert "$checkpoints/qwen3-low-bit" "$work/low.gguf"
grep -q 'note: lossless: 8 of 8 matrices .*, largest difference 0$' "$work/err" || fail "no note about lossless matrices"
quern info "$work/low.gguf"
{ grep -qE '^ +q1_0 +4 tensors' "$work/out" && grep -qE '^ +ptq1_0 +3 tensors' "$work/out"; } || fail "types of a low-bit checkpoint"
quern convert --force "$checkpoints/qwen2" "$work/forced.gguf" q2_0
{ [ $status -eq 0 ] && grep -q 'note: warning: .* will not be usable' "$work/err"; } || fail "--force"

printf 'some text' >"$work/text"
refuses 2 'too few arguments' convert "$checkpoints/qwen2"
refuses 2 "type 'q9_9'" convert "$checkpoints/qwen2" "$work/x.gguf" q9_9
refuses 1 'ordinary weights' convert "$checkpoints/qwen2" "$work/x.gguf" q1_0
refuses 1 'exists and is not a GGUF file' convert "$checkpoints/qwen2" "$work/text"
refuses 1 'No such file' convert "$work/nothing" "$work/x.gguf"
refuses 1 'config.json' convert "$work" "$work/x.gguf"
refuses 1 '' convert "$checkpoints/qwen2" "$work/no/such/folder"
(ulimit -f 20 && timeout 60 "$QN_BIN/quern" convert "$checkpoints/qwen2" "$work/x.gguf" f32 >"$work/out" 2>"$work/err")
[ $? -eq 1 ] || fail "no error from a file that cannot grow"
[ "$(cat "$work/text")" = 'some text' ] || fail "a text was written over"
[ ! -e "$work/x.gguf" ] || fail "a file was left behind"
[ -z "$(find "$work" -name '*.part')" ] || fail "a temporary file was left behind"
finish
