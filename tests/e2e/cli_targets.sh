#!/usr/bin/env bash
# No command writes over what it did not make: not over the model, not over an input, not over other people's files; also through
# links.
. "$(dirname "$0")/lib_cli.sh"
cp "$parrot" "$work/model.gguf"
ln -s model.gguf "$work/soft"
ln "$work/model.gguf" "$work/hard"
printf 'some text' >"$work/text"
ln -s text "$work/text-link"
: >"$work/empty"
printf 'quernSE' >"$work/short"
mkdir "$work/folder"
(cd "$work" && sha256sum model.gguf text empty short) >"$work/sums"
same() { (cd "$work" && sha256sum -c --quiet sums >/dev/null 2>&1) || { fail "$1: a file was changed"; cp "$parrot" "$work/model.gguf"; }; }

# ---- --save ----
for target in model.gguf soft hard; do
    refuses 1 "$work/$target: it is the model itself" run -m "$work/model.gguf" -p x -n 3 -q --save "$work/$target"
    refuses 1 "$work/$target: it is the model itself" run -m "$work/soft" -p x -n 3 -q --save "$work/$target"
    refuses 1 "$work/$target: it is the model itself" chat -m "$work/model.gguf" -q --save "$work/$target"
done
refuses 1 "the file given to -f" run -m "$parrot" -f "$work/text" -n 3 -q --save "$work/text"
refuses 1 "the file given to -f" run -m "$parrot" -f "$work/text" -n 3 -q --save "$work/text-link"
for target in text short hard; do
    refuses 1 "$work/$target: exists and is not a session file" run -m "$parrot" -p x -n 3 -q --save "$work/$target"
    refuses 1 "$work/$target: exists and is not a session file" chat -m "$parrot" -q --save "$work/$target"
done
same "--save"
quern run -m "$parrot" -n 3 -q --save "$work/text" <"$work/text"
{ [ $status -eq 1 ] && grep -q 'standard input' "$work/err"; } || fail "--save over what standard input reads"
same "--save over standard input"
refuses 1 'is a directory' run -m "$parrot" -p x -n 0 -q --save "$work/folder"
# Refused before anything is computed: nothing was generated.
quern run -m "$parrot" -p x -q --save "$work/text"
[ ! -s "$work/out" ] || fail "--save: refused after the answer only"
for command in run chat; do # before the first token
    printf 'x' | QN_DEVICE=cpu timeout 60 "$QN_BIN/quern" $command -m "$parrot" --save "$work/no/folder/s" >"$work/out" 2>"$work/err"
    status=$?
    { [ $status -eq 1 ] && grep -q "no/folder/s: cannot create" "$work/err"; } || fail "$command --save into no folder: status $status"
    { [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" -eq 1 ]; } || fail "$command --save into no folder: after an answer"
done
# A path that can be written at the start and not at the end: the conversation is in a file that is named.
mkdir "$work/gone" "$work/temporary"
: >"$work/out"
{
    echo x
    wait_until [ -s "$work/out" ]
    rmdir "$work/gone"
    echo y
} | TMPDIR=$work/temporary QN_DEVICE=cpu timeout 60 "$QN_BIN/quern" chat -m "$parrot" -q --save "$work/gone/s" >"$work/out" 2>"$work/err"
[ "${PIPESTATUS[1]}" -eq 1 ] || fail "--save into a folder that is gone: no error"
grep -q "gone/s: cannot" "$work/err" || fail "--save into a folder that is gone: no reason"
saved=$(sed -n 's/^quern: the conversation is in \(.*\) instead: .*/\1/p' "$work/err")
{ [ -s "$saved" ] && [ "${saved#"$work/temporary/quern-session-"}" != "$saved" ]; } || fail "--save elsewhere: '$saved'"
[ "$(stat -c %a "$saved")" = 600 ] || fail "--save elsewhere: who may read it"
quern run -m "$parrot" -n 1 -q --load "$saved" --ignore-eos
[ $status -eq 0 ] || fail "--load of what was saved elsewhere"
mkdir "$work/gone"
printf 'x' | (sleep 1; rmdir "$work/gone"; cat) | TMPDIR=$work/no/folder QN_DEVICE=cpu timeout 60 "$QN_BIN/quern" chat -m "$parrot" -q --save "$work/gone/s" >"$work/out" 2>"$work/err"
saved=$(sed -n 's/^quern: the conversation is in \(.*\) instead: .*/\1/p' "$work/err")
case $saved in
/tmp/quern-session-*) rm "$saved" ;;
*) fail "--save elsewhere, TMPDIR is no folder: '$saved'" ;;
esac
# A session file may be replaced, by links, too, and so may the one that was loaded.
quern run -m "$parrot" -p x -n 3 -q --save "$work/s"
[ $status -eq 0 ] || fail "--save to a new file"
ln -s s "$work/s-link"
for target in s s-link; do
    quern run -m "$parrot" -p y -n 3 -q --save "$work/$target"
    [ $status -eq 0 ] || fail "--save over a session file ($target)"
    quern run -m "$parrot" -p y -n 3 -q --load "$work/s" --save "$work/$target"
    [ $status -eq 0 ] || fail "--save over the session that was loaded ($target)"
done
[ -L "$work/s-link" ] || fail "--save replaced a link instead of what it leads to"
refuses 1 "the file given to -f" run -m "$parrot" -f "$work/s" -n 3 -q --save "$work/s"

# ---- logits -o ----
for target in model.gguf soft hard; do
    refuses 1 "$work/$target: it is the model itself" logits -m "$work/model.gguf" --ids 1 -o "$work/$target"
done
printf '%04d' $(seq 1000) >"$work/digits" # of a size that floats could have
for target in text digits short s; do
    refuses 1 "$work/$target: exists and does not hold logits" logits -m "$parrot" --ids 1 -o "$work/$target"
done
refuses 1 "exists and does not hold logits" logits -m "$parrot" --ids 1 -o "$work/hard"
same "logits -o"
for ids in 1,2,3 1; do # the second time over the first
    quern logits -m "$parrot" --ids $ids -o "$work/l"
    [ $status -eq 0 ] || fail "logits -o over earlier logits"
done
quern logits -m "$golden/qwen3.f16.gguf" --ids 1 -o "$work/l" # of another model
[ $status -eq 0 ] || fail "logits -o over another model's logits"
quern logits -m "$parrot" --ids 1 -o "$work/l"
quern logits -m "$parrot" --ids 1 -o /dev/stdout
[ "$(stat -c %s "$work/out")" -eq "$(stat -c %s "$work/l")" ] || fail "logits -o /dev/stdout"

# "-" is no file. (batch writes to standard output: cli_habits.sh.)
for command in "logits -m $parrot --ids 1 -o -" "run -m $parrot hi -n 1 --save -" "quantize $golden/qwen3.f16.gguf - q8_0"; do
    cd "$work" && refuses 1 'expected a file' $command
    [ ! -e "$work/-" ] || fail "$command: a file named -"
    cd - >/dev/null
done

# ---- quantize ----
for target in text short s; do
    refuses 1 "$work/$target: exists and is not a GGUF file" quantize "$work/model.gguf" "$work/$target" q8_0
done
same "quantize"
quern quantize "$golden/qwen3.f16.gguf" "$work/q.gguf" q8_0
[ $status -eq 0 ] || fail "quantize to a new file"
quern quantize "$work/q.gguf" "$work/q.gguf" q8_0 # in place, as documented
[ $status -eq 0 ] || fail "quantize in place"

# ---- An empty file, as mktemp leaves it, holds nothing that could be lost ----
for command in "run -m $parrot -p x -n 3 -q --save" "logits -m $parrot --ids 1 -o"; do
    : >"$work/made"
    # shellcheck disable=SC2086
    quern $command "$work/made"
    { [ $status -eq 0 ] && [ -s "$work/made" ]; } || fail "$command: an empty file is not written"
done
: >"$work/made"
quern quantize "$golden/qwen3.f16.gguf" "$work/made" q8_0
[ $status -eq 0 ] || fail "quantize to an empty file"
finish
