#!/usr/bin/env bash
# quern run --stop-token and --min-tokens: where a text ends, and where it does not.
. "$(dirname "$0")/lib_cli.sh"
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
run() {
    quern run -m "$demo" -q --temp 0 -p 'Once upon a time' "$@"
    [ $status -eq 0 ] || fail "run $*: status $status"
}
id_of() {
    quern tokenize -m "$demo" --ids "$1"
    cat "$work/out"
}

run -n 30
whole=$(cat "$work/out")
case $whole in *' little girl'*) ;; *) fail "the demo model tells another story: $whole" ;; esac
little=$(id_of ' little')
run -n 30 --stop-token "$(id_of ' zebra' | cut -d ' ' -f 1)" --stop-token "$little"
[ "$(cat "$work/out")" = "${whole%% little*}" ] || fail "--stop-token"
run -n 30 --stop-token "$little" --min-tokens 12
case $(cat "$work/out") in *little*) fail "--min-tokens: a token that is held back" ;; "${whole%% little*}"*) ;; *) fail "--min-tokens" ;; esac
[ "$(wc -c <"$work/out")" -gt $((${#whole} / 3)) ] || fail "--min-tokens: too short"
run -n 30 --stop ' little' --min-tokens 12 # text, until so many tokens are there
[ "$(cat "$work/out")" = "$whole" ] || fail "--min-tokens with --stop"
run -n 30 --choices 'yes,no' --min-tokens 20 # only the end may follow
case $(cat "$work/out") in yes | no) ;; *) fail "--min-tokens with --choices" ;; esac
printf 'root ::= [ab]{2,}\n' >"$work/long.gbnf"
run --grammar "$work/long.gbnf" --min-tokens 25 -n 30
grep -qE '^[ab]{25,}$' "$work/out" || fail "--min-tokens with --grammar"

refuses 2 "--stop-token: 'x' is not a token id" run -m "$demo" --stop-token x y
refuses 2 "--stop-token: '-1' is not a token id" run -m "$demo" --stop-token -1 y
refuses 2 "--stop-token: '2147483648' is not a token id" run -m "$demo" --stop-token 2147483648 y
refuses 1 'stop token 1: id 4096 is outside the vocabulary, expected 0 to 4095' run -m "$demo" --stop-token 5 --stop-token 4096 y
refuses 2 '--min-tokens: 6 is more than the 5 of -n' run -m "$demo" -n 5 --min-tokens 6 y
refuses 2 '--min-tokens: -1 is out of range' run -m "$demo" --min-tokens -1 y
finish
