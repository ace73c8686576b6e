#!/usr/bin/env bash
# chat with lines from a pipe: what arrives in the model is what was written, and what cannot arrive is refused. The conversation
# is read from the session file, as token ids.
. "$(dirname "$0")/lib_cli.sh"

# saved FILE - the conversation in a session file as text; special tokens are 256 and up in this model, shown as their ids.
saved() {
    local length
    length=$(od -An -t u4 -j 12 -N 4 "$1" | tr -d ' ')
    od -An -v -t d4 -w4 -j 80 -N $((4 * length)) "$1" | while read -r id; do
        if [ "$id" -lt 256 ]; then printf "\\x$(printf %x "$id")"; else printf '<%d>' "$id"; fi
    done
}
quern tokenize -m "$parrot" --ids '<|im_start|><|im_end|>he'
read -r start end he <"$work/out"
[ "$he" = 256 ] || fail "the parrot's vocabulary is another: 'he' is $he"

# chat LINES OPTIONS... - a conversation, saved in $work/s.
chat() {
    local lines=$1
    shift
    rm -f "$work/s"
    printf "$lines" | timeout 60 "$QN_BIN/quern" chat -m "$parrot" -q --save "$work/s" "$@" >"$work/out" 2>"$work/err"
    status=$?
}
# heard TEXT - the conversation holds this turn of the user's (written with "he" as the token that it is).
heard() { saved "$work/s" | grep -qF "<$start>user"$'\n' && case $(saved "$work/s") in *"user"$'\n'"$1<$end>"*) ;; *) fail "chat: '$1' did not arrive: $(saved "$work/s")" ;; esac; }

chat 'one\r\ntwo\r\n'
[ $status -eq 0 ] || fail "chat: CRLF"
heard one
heard two
! grep -q $'\r' <(saved "$work/s") || fail "chat: a carriage return arrived"
chat 'last line without an end'
[ "$(cat "$work/out")" = 'Hé 世🙂!' ] || fail "chat: a last line without a newline"
chat 'one\ntw\000o\nthree\n'
{ [ $status -eq 1 ] && grep -q '^quern: the message has a zero byte' "$work/err"; } || fail "chat: a zero byte is not refused"
[ "$(cat "$work/out")" = 'Hé 世🙂!' ] || fail "chat: goes on after a zero byte"
chat '//slash\n///two\n'
heard /slash
heard //two
chat '/sytem x\nfirst\n'
{ [ $status -eq 0 ] && grep -q "unknown command '/sytem x'" "$work/err"; } || fail "chat: a mistyped command"

# ---- What commands say ----
chat '/system\n/system be\nhi\n/system\n/reset\n/help\n'
grep -q 'There is no system turn' "$work/err" || fail "/system: none"
grep -q "system's turn is set" "$work/err" || fail "/system TEXT: no confirmation"
grep -qx 'be' "$work/err" || fail "/system: does not show it"
grep -q 'conversation begins again' "$work/err" || fail "/reset: no confirmation"
chat 'x\n' --stop 世
[ "$(cat "$work/out")" = 'Hé ' ] || fail "chat --stop"
refuses 2 '--stop: the text is empty' chat -m "$parrot" --stop ''

# ---- /reset keeps the system's turn, also that of a conversation that was loaded ----
chat 'one\n' --system 'Say so.'
cp "$work/s" "$work/loaded"
for begin in "chat -q" "run --chat -n 3 -q -p zzz"; do
    # shellcheck disable=SC2086
    quern $begin -m "$parrot" --load "$work/loaded" --save "$work/loaded" </dev/null
    [ $status -eq 0 ] || fail "$begin --load --save"
    chat '/system\n/reset\ntwo\n' --load "$work/loaded"
    grep -qx 'Say so.' "$work/err" || fail "/system after --load"
    case $(saved "$work/s") in
    "<$start>system"$'\n'"Say so.<$end>"*user$'\n'two*) ;;
    *) fail "/reset after --load: the system's turn is gone: $(saved "$work/s")" ;;
    esac
    case $(saved "$work/s") in *one*) fail "/reset after --load: the conversation is still there" ;; esac
done
chat 'one\n'
cp "$work/s" "$work/loaded"
chat '/system\n/reset\ntwo\n' --load "$work/loaded"
{ grep -q 'There is no system turn' "$work/err" && ! grep -qF system <(saved "$work/s"); } || fail "/reset after --load without a system turn"
quern run -m "$parrot" -p 'no chat at all' -n 3 -q --save "$work/plain"
chat '/system\n/reset\ntwo\n' --load "$work/plain"
grep -q 'There is no system turn' "$work/err" || fail "/system after a text that is no chat"

# ---- A message that is too long by itself is distinguished from a full context ----
long=$(printf 'x%.0s' $(seq 200))
chat "$long\nshort\n" -c 100
grep -qE 'the message has 2[0-9][0-9] tokens, but the context has 100; use a larger -c' "$work/err" || fail "chat: a first message that is too long"
! grep -q '/reset' "$work/err" || fail "chat: /reset is said to help a message that is too long"
[ "$(cat "$work/out")" = 'Hé 世🙂!' ] || fail "chat: does not go on after a message that is too long"
chat "a\n$long\nb\n" -c 150
grep -qE 'the message has 2[0-9][0-9] tokens, but the context has 150' "$work/err" || fail "chat: a later message that is too long"

# ---- A full context: the oldest turns are dropped until the prompt and a quarter of the context fit, the system's turn stays ----
lines='a\nb\nc\nd\ne\nf\n'
quietly() { printf "$1" | timeout 60 "$QN_BIN/quern" chat -m "$parrot" --save "$work/s" "${@:2}" >"$work/out" 2>"$work/err"; }
rm -f "$work/s"
quietly "$lines/context\n/save $work/dropped.json\n" -c 120 --system be
[ "$(grep -c 'Hé 世🙂!' "$work/out")" -eq 6 ] || fail "chat: a full context ends the conversation"
grep -q 'note: the context of 120 tokens is full: the oldest 1 turn was dropped' "$work/err" || fail "chat: no note of a dropped turn"
case $(saved "$work/s") in
"<$start>system"$'\n'"be<$end>"$'\n'"<$start>user"*f"<$end>"*) ;;
*) fail "chat: the system's turn or the last one is not in a full context: $(saved "$work/s")" ;;
esac
! grep -qx "a<$end>" <(saved "$work/s") || fail "chat: the oldest turn is still in a full context"
grep -q '12 messages, of which [2468] dropped' "$work/err" || fail "/context: dropped messages"
[ "$(grep -c '"role"' "$work/dropped.json")" -eq 13 ] || fail "/save: dropped messages are not saved"
length=$(od -An -t u4 -j 12 -N 4 "$work/s")
[ "$length" -le 120 ] || fail "chat: $length tokens in a context of 120"
# What --load brought is dropped as a whole; a note of one turn.
quietly 'x\ny\nz\n' -c 120 --load "$work/s"
{ [ "$(grep -c 'Hé 世🙂!' "$work/out")" -eq 3 ] && grep -q 'was dropped' "$work/err"; } || fail "chat --load: a full context"
case $(saved "$work/s") in "<$start>system"$'\n'"be<$end>"*) ;; *) fail "chat --load: the system's turn is dropped" ;; esac
# An answer that meets the end of the context: the prompt takes all but 5 tokens of it.
rm -f "$work/s"
quietly "$(printf 'x%.0s' $(seq 43))\nb\n" -c 70
grep -q 'note: the answer ends here: the context of 70 tokens is full' "$work/err" || fail "chat: an answer at the end of the context has no note"
[ "$(grep -c 'H' "$work/out")" -eq 2 ] || fail "chat: does not go on after an answer at the end of the context"
finish
