#!/usr/bin/env bash
# The commands of chat, and reasoning: with a model that thinks "Hm" before it answers. What the session evaluated is compared with
# what the chat template prints for the messages that /save wrote.
. "$(dirname "$0")/lib_chat.sh"

# chat LINES OPTIONS... - a conversation with it.
chat() { timeout 60 "$QN_BIN/quern" chat "${thinking[@]}" "${@:2}" <<<"$1" >"$work/out" 2>"$work/err"; status=$?; }

# ---- Reasoning ----
chat 'one'
[ "$(cat "$work/out")" = $'<think>\nHm\n</think>\n\né 世🙂!' ] || fail "reasoning is not shown in a pipe"
for view in fold hide; do
    chat 'one' --reasoning $view
    [ "$(cat "$work/out")" = 'é 世🙂!' ] || fail "--reasoning $view in a pipe"
done
chat 'one' --reasoning hide --stop 世
[ "$(cat "$work/out")" = 'é ' ] || fail "--stop in an answer with reasoning"
refuses 2 "--reasoning" chat "${thinking[@]}" --reasoning some

# ---- --reasoning-budget: after no token the words that end reasoning, and what the model says then is content ----
chat 'one' --reasoning-budget 0
[ "$(cat "$work/out")" = 'Hm</think>é 世🙂!' ] || fail "chat --reasoning-budget"
chat 'one' --reasoning-budget 1
[ "$(cat "$work/out")" = $'<think>\nHm\n</think>\n\né 世🙂!' ] || fail "chat --reasoning-budget that is not spent"
quern run "${thinking[@]}" --chat -p one --reasoning-budget 0 -q
[ "$(cat "$work/out")" = $'\n</think>\n\nHm</think>é 世🙂!' ] || fail "run --reasoning-budget"
quern run "${thinking[@]}" --chat -p one -q
[ "$(cat "$work/out")" = 'Hm</think>é 世🙂!' ] || fail "run without --reasoning-budget"
quern run -m "$parrot" -p one --reasoning-budget 0 -q
[ "$(cat "$work/out")" = 'Hé 世🙂!' ] || fail "--reasoning-budget with a template without reasoning"
quern run "${thinking[@]}" --chat -p one --reasoning-budget 0 --choices yes,no -q
case $(cat "$work/out") in $'\n</think>yes' | $'\n</think>no') ;; *) fail "--reasoning-budget and a grammar: $(cat "$work/out")" ;; esac
refuses 2 "--reasoning-budget" chat "${thinking[@]}" --reasoning-budget -2

# ---- /think ----
chat $'/think\n/think off\none\n/think low\ntwo\n/think high\nthree\n/think on\nfour\n/think wild' --save "$work/s" -q
[ "$(grep -c '<think>' "$work/out")" -eq 3 ] || fail "/think: three answers have reasoning, one has none"
{ grep -q 'Thinking is off' "$work/err" && grep -q 'level low' "$work/err" && grep -q 'Thinking is on' "$work/err"; } || fail "/think: what it says"
grep -q "'wild' is neither on, off nor a level" "$work/err" || fail "/think wild"
printf '/think off\n/think low\n' | timeout 60 "$QN_BIN/quern" chat -m "$parrot" >"$work/out" 2>"$work/err"
{ grep -q 'no enable_thinking' "$work/err" && grep -q 'no reasoning_effort' "$work/err"; } || fail "/think: a template without thinking"

# ---- /save and /load ----
chat $'one\ntwo \\\nlines\\\\\nend\n/think off\n/save '"$work/a.json"
holds "$work/a.json" "user 'one'
$answer
user 'two \nlines\\\\\nend'
$answer"
[ "$(stat -c %a "$work/a.json")" = 600 ] || fail "/save: others can read the file"
grep -q '"enable_thinking": false' "$work/a.json" || fail "/save: thinking"
chat $'/load '"$work/a.json"$'\nthree\n/save '"$work/b.json" --save "$work/loaded"
[ "$(contents "$work/b.json" | wc -l)" -eq 6 ] || fail "/load: messages are missing"
grep -q '4 messages are loaded' "$work/err" || fail "/load: says how many"
[ "$(cat "$work/out")" = 'Hm</think>é 世🙂!' ] || fail "/load: thinking is not off"
n=$(od -An -t u4 -j 12 -N 4 "$work/loaded" | tr -d ' ')
# The session holds the prompt of the last answer: the template's tokens of all but that, then the header.
python3 -c 'import json, sys
c = json.load(open(sys.argv[1])); c["messages"].pop(); c["add_generation_prompt"] = True; json.dump(c, open(sys.argv[2], "w"))' "$work/b.json" "$work/prompt.json"
quern tokenize "${thinking[@]}" --ids --chat "$work/prompt.json"
tr ' ' '\n' <"$work/out" >"$work/expected"
od -An -v -t d4 -w4 -j 80 -N $((4 * n)) "$work/loaded" | tr -d ' ' | head -n "$(wc -l <"$work/expected")" >"$work/held"
cmp -s "$work/held" "$work/expected" || fail "chat evaluated other tokens than the template's"
echo 'no conversation' >"$work/other"
for bad in '{"messages": 1}' '{"messages": [{"content": "x"}]}' '{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "x"}]}' '{"a": 1, "a": 2}' '['; do
    echo "$bad" >"$work/bad.json"
    chat $'one\n/load '"$work/bad.json"$'\n/save '"$work/kept.json"
    { [ $status -eq 0 ] && grep -q "bad.json" "$work/err"; } || fail "/load: '$bad' is not refused"
    holds "$work/kept.json" "user 'one'
$answer"
done
chat $'one\n/save '"$work/other"$'\n/save\n/load\n/load '"$work/nowhere"
{ grep -q 'exists and is not a conversation' "$work/err" && [ "$(cat "$work/other")" = 'no conversation' ]; } || fail "/save replaces another file"
{ grep -q '/save FILE' "$work/err" && grep -q '/load FILE' "$work/err" && grep -q nowhere "$work/err"; } || fail "/save and /load without a file"

# ---- /regen and /edit ----
chat $'/regen\n/edit\n/edit x\none\n/regen\n/edit\n/edit two words \n/save '"$work/c.json"
[ "$(grep -c 'é 世🙂!' "$work/out")" -eq 3 ] || fail "/regen and /edit: three answers"
holds "$work/c.json" "user 'two words'
$answer"
{ grep -q 'no message to answer' "$work/err" && grep -q 'no message to edit' "$work/err" && grep -q 'no line editor' "$work/err"; } || fail "/regen and /edit without a message"
chat $'one\ntwo\n'"/edit $(printf 'x%.0s' $(seq 200))"$'\n/save '"$work/d.json" -c 120
grep -q 'the message has' "$work/err" || fail "/edit: a message that is too long"
holds "$work/d.json" "user 'one'
$answer
user 'two'
$answer"
printf '{"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "asked"}]}' >"$work/open.json"
chat $'/load '"$work/open.json"$'\n/system\n/regen\n/save '"$work/e.json"
{ grep -qx be "$work/err" && grep -q '/regen answers the last one' "$work/err"; } || fail "/load: a conversation that ends with a question"
holds "$work/e.json" "system 'be'
user 'asked'
$answer"

# ---- /context: what the session held of the second prompt is not evaluated again ----
chat $'one\n/context\ntwo\n/context\n/context now\n/help'
evaluated=$(sed -n 's/^prompt .* of which \([0-9]*\) were evaluated.*/\1/p' "$work/err" | tail -1)
prompt=$(sed -n 's/^prompt *\([0-9]*\) tokens.*/\1/p' "$work/err" | tail -1)
{ [ -n "$evaluated" ] && [ "$evaluated" -lt $((prompt - 15)) ]; } || fail "/context: $evaluated of $prompt tokens evaluated"
{ grep -qE '^context +[0-9]+ of 1024 tokens, 4 messages' "$work/err" && grep -qE '^cache .*f16' "$work/err" && grep -qE '^answer +[0-9]+ tokens' "$work/err"; } || fail "/context"
grep -q '/context takes no argument' "$work/err" || fail "a command with an argument too many"
for name in help regen edit think system reset save load context exit; do grep -q "^/$name " "$work/err" || fail "/help lacks /$name"; done

# ---- A full context: as few turns are dropped as possible ----
# prompt_tokens N - tokens of the prompt with the last N of 20 turns and one more.
turns() { python3 -c 'import json, sys
n = int(sys.argv[2])
m = [dict(role=r, content=f"text {i}" * (1 + i % 3)) for i in range(20 - n, 20) for r in ("user", "assistant")]
json.dump(dict(messages=m + [dict(role="user", content="last")] * int(sys.argv[3]), add_generation_prompt=True), open(sys.argv[1], "w"))' "$@"; }
prompt_tokens() {
    turns "$work/some.json" "$1" 1
    quern tokenize "${thinking[@]}" --ids --chat "$work/some.json"
    wc -w <"$work/out"
}
turns "$work/many.json" 20 0
chat "/load $work/many.json"$'\nlast' -c 480
dropped=$(sed -n 's/.*the oldest \([0-9]*\) turns were dropped/\1/p' "$work/err")
[ "${dropped:-0}" -gt 2 ] || fail "a full context: '$dropped' turns of 20 dropped"
{ [ "$(prompt_tokens $((20 - dropped)))" -le 360 ] && [ "$(prompt_tokens $((21 - dropped)))" -gt 360 ]; } || fail "a full context: $dropped turns are not as few as possible"

# ---- Bytes that are not UTF-8 ----
printf 'a\xff\xe4b\n/save %s\n' "$work/f.json" | timeout 60 "$QN_BIN/quern" chat "${thinking[@]}" >"$work/out" 2>"$work/err"
holds "$work/f.json" "user 'a��b'
$answer"

# ---- A hybrid model goes back to a checkpoint, and answers as from an empty session ----
hybrid() { timeout 300 "$QN_BIN/quern" chat -m "$QN_SOURCE_DIR/models/quern-demo.gguf" -q --temp 0 -n 70 "$@" >"$work/out" 2>"$work/err"; }
hybrid <<<$'A cat\n/save '"$work/g.json"$'\n/regen\nA dog\n/context\n/edit A bird\n/context'
[ "$(sed -n 's/^prompt .* of which 0*\([1-9][0-9]*\) were evaluated.*/x/p' "$work/err" | wc -l)" -eq 2 ] || fail "a hybrid model: /context"
awk '/^prompt/ { if ($2 - $6 < 8) bad = 1 } END { exit bad }' "$work/err" || fail "a hybrid model: its session's prefix is not used again"
cp "$work/out" "$work/together"
hybrid <<<'A cat'
cp "$work/out" "$work/cat"
for other in dog bird; do
    hybrid <<<"/load $work/g.json"$'\n'"A $other"
    cp "$work/out" "$work/$other"
done
cmp -s "$work/together" <(cat "$work/cat" "$work/cat" "$work/dog" "$work/bird") || fail "a hybrid model: other answers where a prefix is used again"
# After more than 64 tokens only a checkpoint leads back.
hybrid <<<"$(printf 'a cat and a dog %.0s' $(seq 30))"$'\n/regen\n/context'
awk '/^prompt/ { if ($2 < 100 || $2 - $6 < 90) bad = 1 } END { exit bad }' "$work/err" || fail "a hybrid model: no checkpoint after the messages of a prompt"
finish
