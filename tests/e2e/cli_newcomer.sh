#!/usr/bin/env bash
# What somebody types who knows llama.cpp, or nothing yet: it works where the meaning is the same, else the error says what to
# type.
. "$(dirname "$0")/lib_cli.sh"
answer='Hé 世🙂!'
cp "$parrot" "$work/model.gguf"
cp "$parrot" "$work/model-without-ending"

# ---- Operands ----
gives "$answer" run -m "$parrot" "text"
gives "$answer" run "$parrot" "text"
gives "$answer" run "$work/model-without-ending" "text"
gives "$answer" run "text" -m "$parrot" --temp 0
gives "$answer" run "$parrot" -p "text"
gives "$answer" run -m "$parrot" -- "-text"
[ "$(printf 'some text' | "$QN_BIN/quern" run "$parrot" -q)" = "$answer" ] || fail "run MODEL: a prompt on standard input"
[ "$(printf 'hello\n' | "$QN_BIN/quern" chat "$parrot" -q)" = "$answer" ] || fail "chat MODEL"
refuses 1 "nowhere.gguf" run "$work/nowhere.gguf" x
refuses 2 "unexpected argument 'b'" run -m "$parrot" a b
refuses 2 "unexpected argument 'b'" run -m "$parrot" b -p a
refuses 2 "unexpected argument 'b'" run -m "$parrot" b -f a
refuses 2 "unexpected argument '$parrot'" chat -m "$parrot" "$parrot"
quern tokenize "$parrot" --ids xyz
[ "$(cat "$work/out")" = "120 121 122" ] || fail "tokenize MODEL TEXT"
quern tokenize -m "$parrot" --ids xyz
[ "$(cat "$work/out")" = "120 121 122" ] || fail "tokenize -m MODEL TEXT"
quern info -m "$parrot"
grep -v 'are available' "$work/out" >"$work/info"
quern info "$parrot"
{ [ $status -eq 0 ] && grep -v 'are available' "$work/out" | cmp -s - "$work/info"; } || fail "info -m FILE is not info FILE"
{ grep -q "^tool calls  none" "$work/out" && grep -q "^thinking    none" "$work/out"; } || fail "info: tool calls and thinking"
refuses 2 'unexpected argument' info -m "$parrot" x
quern bench "$parrot" -p 8 -n 0 -r 1 --format json
{ [ $status -eq 0 ] && grep -q '"test":"pp8"' "$work/out"; } || fail "bench MODEL"
quern logits "$parrot" --ids 1 -o "$work/logits"
[ $status -eq 0 ] || fail "logits MODEL"

# ---- The program itself ----
for version in version --version -v -V; do
    quern $version
    { [ $status -eq 0 ] && grep -qE '^quern [0-9]+\.[0-9]+\.[0-9]+$' "$work/out"; } || fail "quern $version"
done
for help in help --help -h; do
    quern $help
    { [ $status -eq 0 ] && grep -q '^usage: quern COMMAND' "$work/out"; } || fail "quern $help"
    quern $help run
    { [ $status -eq 0 ] && grep -q '^usage: quern run' "$work/out"; } || fail "quern $help run"
done
refuses 2 "unknown command 'rnu'; did you mean quern run?" rnu
refuses 2 "unknown command 'perplexty'; did you mean quern perplexity?" help perplexty
refuses 2 "did you mean quern run $work/model.gguf, or quern chat" "$work/model.gguf"
refuses 2 'a command comes first, as in quern run -p' -p x

# ---- Values ----
gives 'Hé' run -m "$parrot" -p x -n3
gives 'Hé' run -m"$parrot" -px -n3 -t1 -q
gives 'Hé' run -m "$parrot" -p x --predict=3
gives 'Hé' run -m "$parrot" -p x -n 7 -n 3 # the last counts
refuses 2 "-n: '3x' is not an integer" run -m "$parrot" -p x -n3x

# ---- llama.cpp's names ----
gives 'Hé' run -m "$parrot" -p x --n-predict 3
gives "$answer" run -m "$parrot" -p x --ctx-size 100
gives "$answer" run -m "$parrot" -p x --repeat-penalty 1.1 --temperature 0 -s 7
gives "$answer" run -m "$parrot" -p x -no-cnv
refuses 2 "unknown option '-ngl': .*--device cuda" run -m "$parrot" -p x -ngl 99
refuses 2 "unknown option '--n-gpu-layers': .*--device cuda" run -m "$parrot" -p x --n-gpu-layers=99
refuses 2 "unknown option '-cnv': .*--chat" run -m "$parrot" -p x -cnv
refuses 2 "unknown option '-ctk': .*--kv" bench -m "$parrot" -ctk q8_0
refuses 2 "unknown option '-prompt'; did you mean --prompt?" run -m "$parrot" -prompt x
refuses 2 "unknown option '-temp'; did you mean --temp?" run -m "$parrot" -temp 0
refuses 2 "unknown option '--top_p'; did you mean --top-p?" run -m "$parrot" --top_p 1
refuses 2 "unknown option '--sytem'; did you mean --system?" chat -m "$parrot" --sytem x
refuses 2 "unknown option '--stop': it is an option of quern run and chat" bench -m "$parrot" --stop x

# ---- Notes ----
quern run -m "$parrot" -p x -c 5000
{ [ $status -eq 0 ] && grep -q '^quern: note: -c 5000 is more than the 1024 tokens' "$work/err"; } || fail "-c beyond the trained context: no note"
quern run -m "$parrot" -p x -c 1024
! grep -q 'note: -c' "$work/err" || fail "-c of the trained context: a note"
# The speed line starts a line of its own where both streams go to one place.
timeout 60 "$QN_BIN/quern" run -m "$parrot" -p x >"$work/both" 2>&1
grep -q '^quern: prompt 1 tokens' "$work/both" || fail "the speed line continues the text"
# One summary of the tensors that keep a wider type; -v names them.
# Each run has the warning of --force, too.
quern quantize --force "$golden/qwen3.f16.gguf" "$work/q.gguf" q2_0
[ "$(grep -c . "$work/err")" -le 2 ] || fail "quantize: more than one line about wider types"
summary=$(cat "$work/err")
quern quantize --force "$golden/qwen3.f16.gguf" "$work/q.gguf" q1_0
n=$(sed -n 's/^quern: note: \([0-9]*\) tensors\{0,1\} keeps\{0,1\} a wider type than q1_0 (-v names them)$/\1/p' "$work/err")
{ [ -n "$n" ] && [ "$(wc -l <"$work/err")" -eq 2 ]; } || fail "quantize: no summary of wider types ($summary)"
quern quantize --force -v "$golden/qwen3.f16.gguf" "$work/q.gguf" q1_0
[ "$(wc -l <"$work/err")" -eq $((n + 2)) ] || fail "quantize -v: not a line for each of $n tensors"

# ---- The environment ----
QN_DEVICE=tpu quern run -m "$parrot" -p x
{ [ $status -eq 2 ] && grep -q "^quern: the environment variable QN_DEVICE: 'tpu' is not one of" "$work/err"; } ||
    fail "a bad QN_DEVICE is blamed on something else"
QN_DEVICE=tpu quern run -m "$parrot" -p x --device cpu
[ $status -eq 0 ] || fail "--device does not win over QN_DEVICE"
finish
