#!/usr/bin/env bash
# chat on a terminal (a pseudo-terminal made by script(1)): folded reasoning, editing of characters that are not ASCII and of the
# last message, pasted and continued lines, and the history file. What arrives is read from files that /save wrote.
. "$(dirname "$0")/lib_chat.sh"
command -v script >/dev/null || exit 77
export TERM=xterm

# on_terminal OPTIONS... - a chat whose keys come from standard input.
program=$(printf '%q ' "$QN_BIN/quern" chat "${thinking[@]}")
on_terminal() { timeout 60 script -qec "$program $*" /dev/null >"$work/out" 2>"$work/err"; }
# keys TEXT... - each after the program had time to read those before; then it is left.
keys() { for text in "$@" '/exit\r'; do printf "$text"; sleep 0.5; done; }

# ---- Reasoning ----
keys 'one\r' | on_terminal
grep -qE $'\r\033\\[K\033\\[2mthought: [0-9]+ tokens?, [0-9.]+ s\033\\[0m' "$work/out" || fail "reasoning is not folded on a terminal"
{ ! grep -q 'Hm' "$work/out" && grep -q '^é 世🙂!' "$work/out"; } || fail "folded reasoning is shown, or the answer is not"
keys 'one\r' | on_terminal --reasoning show
grep -q $'\033\\[2mHm' "$work/out" || fail "--reasoning show: not dimmed"
keys 'one\r' | on_terminal --reasoning hide
! grep -qE 'Hm|thought' "$work/out" || fail "--reasoning hide on a terminal"
grep -q 'é 世🙂!' "$work/out" || fail "--reasoning hide: no answer"

# ---- Several lines ----
keys 'a \\\rb\r' "/save $work/a.json\r" | on_terminal
holds "$work/a.json" "user 'a \nb'
$answer"

# ---- Editing: characters of 2 and 3 bytes are taken back whole, the cursor goes over them, and lines are pasted ----
keys 'h\xc3\xa9\xe4\xb8\x96\010\010\xc3\xa8z\033[D\033[D\xf0\x9f\x99\x82\r' "/save $work/b.json\r" | on_terminal
holds "$work/b.json" "user 'h🙂èz'
$answer"
keys '\033[200~p\xc3\xa9\rq\033[201~\r' '/edit\r' '\001x\005y\r' "/save $work/c.json\r" | on_terminal
holds "$work/c.json" "user 'xpé\nqy'
$answer"

# ---- The history outlives the program, and only its owner can read it ----
file=$XDG_STATE_HOME/quern/chat_history
[ "$(stat -c %a "$file" "$(dirname "$file")" | tr '\n' ' ')" = '600 700 ' ] || fail "the history file: others can read it"
rm "$file"
keys 'first\r' '\033[200~two\rback\\slash\033[201~\r' | on_terminal
[ "$(cat "$file")" = $'first\ntwo\\nback\\\\slash\n/exit' ] || fail "the history file holds: $(cat "$file")"
keys '\033[A\033[A\r' "/save $work/d.json\r" | on_terminal
holds "$work/d.json" "user 'two\nback\\\\slash'
$answer"
for i in $(seq 1200); do echo "entry $i"; done >"$file"
keys '\033[A\033[A\r' "/save $work/e.json\r" | on_terminal
holds "$work/e.json" "user 'entry 1199'
$answer"
[ "$(head -n 1 "$file")" = 'entry 701' ] || fail "the history file is not cut: it begins with $(head -n 1 "$file")"
[ "$(stat -c %a "$file")" = 600 ] || fail "the history file: others can still read it"
finish
