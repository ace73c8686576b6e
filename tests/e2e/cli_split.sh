#!/usr/bin/env bash
# Models split over several files: run, logits, info and quantize take any of the files for the whole, and say which are missing.
. "$(dirname "$0")/lib_cli.sh"
splitter=$QN_BIN/tests/test_gguf_split # with arguments it writes the files of a model
[ -x "$splitter" ] || { echo "no unit tests here, which split models"; exit 77; }
model=$golden/llama.f16.gguf
"$splitter" "$model" "$work/m" 3 && "$splitter" "$parrot" "$work/p" 2 || fail "cannot split"

# ---- The same as the whole file ----
gives 'Hé 世🙂!' run -m "$work/p-00001-of-00002.gguf" -p x
gives 'Hé 世🙂!' run -m "$work/p-00002-of-00002.gguf" -p x
quern tokenize -m "$work/p-00002-of-00002.gguf" 'x'
[ $status -eq 0 ] || fail "tokenize"
quern logits -m "$model" --ids 1,2,3 -o "$work/whole"
for i in 1 2 3; do
    quern logits -m "$work/m-0000$i-of-00003.gguf" --ids 1,2,3 -o "$work/parts"
    cmp -s "$work/whole" "$work/parts" || fail "logits by file $i are not those of the whole file"
done
quern run -m "$parrot" -p x -n 4 -q --save "$work/session"
gives '世🙂!' run -m "$work/p-00001-of-00002.gguf" -q --load "$work/session"

# ---- On a GPU, where there is one: weights are copied out of several maps ----
XDG_CACHE_HOME=$work/cache quern kernels --device cuda
if [ $status -eq 0 ]; then
    XDG_CACHE_HOME=$work/cache quern logits -m "$model" --device cuda --ids 1,2,3 -o "$work/whole"
    XDG_CACHE_HOME=$work/cache quern logits -m "$work/m-00002-of-00003.gguf" --device cuda --ids 1,2,3 -o "$work/parts"
    cmp "$work/whole" "$work/parts" >"$work/err" 2>&1 || fail "logits on the GPU are not those of the whole file"
fi

# ---- info ----
for i in 1 2 3; do
    quern info "$work/m-0000$i-of-00003.gguf"
    [ $status -eq 0 ] && [ ! -s "$work/err" ] || fail "info: file $i"
    grep -qF "file        $work/m-00001-of-00003.gguf, the first of 3" "$work/out" || fail "info: does not say of how many files"
    grep -qF "($(cat "$work"/m-0000?-of-00003.gguf | wc -c) bytes)" "$work/out" || fail "info: the size is not that of all files"
    sed -n '/^tensors/,$p' "$work/out" >"$work/tensors"
done
quern info "$model"
sed -n '/^tensors/,$p' "$work/out" | cmp -s - "$work/tensors" || fail "info: tensors and totals differ from the whole file's"
! grep -q 'the first of' "$work/out" || fail "info: a whole file is called one of several"

# ---- quantize: one file, the same as from the whole ----
quern quantize --force "$model" "$work/whole.gguf" q1_0
quern quantize --force "$work/m-00002-of-00003.gguf" "$work/one.gguf" q1_0
[ $status -eq 0 ] || fail "quantize"
cmp -s "$work/whole.gguf" "$work/one.gguf" || fail "quantize: not the file that comes from the whole one"
quern info "$work/m-00001-of-00003.gguf"
before=$(sed -n 's/^size  *\(.*\) (.*/\1/p' "$work/out")
quern quantize --force "$work/m-00001-of-00003.gguf" "$work/one.gguf" q1_0
grep -qF "q1_0, $before to " "$work/out" || fail "quantize: the size before is not that of all files, $before"
quern info "$work/one.gguf"
! grep -qF 'split.' "$work/out" || fail "quantize: keys of the split stayed"

# ---- What is missing, misnamed or damaged ----
rm "$work/m-00002-of-00003.gguf"
refuses 1 'm-00001-of-00003.gguf: file 1 of 3 of a split model; missing in its directory: m-00002-of-00003.gguf' \
    logits -m "$work/m-00001-of-00003.gguf" --ids 1 -o "$work/l"
refuses 1 'missing in its directory: m-00002-of-00003.gguf' quantize "$work/m-00003-of-00003.gguf" "$work/none.gguf" q1_0
[ ! -e "$work/none.gguf" ] || fail "quantize: wrote a file although a part is missing"
for i in 1 3; do # one file's own tensors are shown, with a note
    quern info "$work/m-0000$i-of-00003.gguf"
    [ $status -eq 0 ] || fail "info: one file of a model without the others"
    grep -qE '^quern: note: .*missing in its directory: m-00002-of-00003.gguf; only this file is shown$' "$work/err" ||
        fail "info: does not say what is missing"
    grep -qF "file        $work/m-0000$i-of-00003.gguf" "$work/out" && grep -q '^tensors (' "$work/out" || fail "info: one file"
done
mv "$work/p-00001-of-00002.gguf" "$work/renamed.gguf"
refuses 1 "renamed.gguf: .*expected a name that ends in '-00001-of-00002.gguf'" info "$work/renamed.gguf"
refuses 1 'missing in its directory: p-00001-of-00002.gguf' run -m "$work/p-00002-of-00002.gguf" -p x
mv "$work/renamed.gguf" "$work/p-00001-of-00002.gguf"
truncate -s -100 "$work/p-00002-of-00002.gguf"
refuses 1 'p-00002-of-00002.gguf: tensor ' info "$work/p-00001-of-00002.gguf"
refuses 1 'p-00002-of-00002.gguf: tensor ' run -m "$work/p-00001-of-00002.gguf" -p x
finish
