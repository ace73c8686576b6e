#!/usr/bin/env bash
# On a terminal (a pseudo-terminal made by script(1)): line editing and history in chat, a terminal that is sane afterwards, and
# a progress line.
. "$(dirname "$0")/lib_cli.sh"
command -v script >/dev/null && command -v stty >/dev/null || exit 77
export TERM=xterm

# on_terminal COMMAND - what it prints on a terminal, into $work/out; keys come from standard input.
program=$(printf %q "$QN_BIN/quern") model=$(printf %q "$parrot") # a shell reads COMMAND: paths may hold spaces
on_terminal() { timeout 60 script -qec "$1" /dev/null >"$work/out" 2>"$work/err"; }

# Typed and edited (an "x" taken back), and recalled with the arrow key.
printf 'hellox\010\rhello\r/exit\r' | on_terminal "$program chat -m $model; stty -a"
[ "$(grep -c 'Hé 世🙂!' "$work/out")" -eq 2 ] || fail "chat on a terminal: two answers"
for setting in icanon echo isig; do
    grep -qE "(^|[ ;])$setting([ ;]|\$)" <(tr '\r' ' ' <"$work/out") || fail "chat leaves a terminal without $setting"
done
printf 'hello\r\033[A\r/exit\r' | on_terminal "$program chat -m $model"
[ "$(grep -c 'Hé 世🙂!' "$work/out")" -eq 2 ] || fail "chat: the arrow key does not recall a line"

# Interrupted, it leaves the terminal as it was.
on_terminal "timeout --foreground -s INT 2 $program run -m $model -p x --ignore-eos -n 100000000 -c 100000000; stty -a" </dev/null
grep -qE '(^|[ ;])icanon([ ;]|$)' <(tr '\r' ' ' <"$work/out") || fail "run leaves a terminal without icanon"

# A progress line on a terminal, nothing in a pipe.
yes 'the quick brown fox' | head -c 300000 >"$work/text"
on_terminal "$program perplexity -m $model -f $(printf %q "$work/text") -c 64 -t 1" </dev/null
grep -q $'\rperplexity \[=* *\]' "$work/out" || fail "perplexity: no progress on a terminal"
quern perplexity -m "$parrot" -f "$work/text" -c 64 -t 1
[ ! -s "$work/err" ] || fail "perplexity: progress in a pipe"
finish
