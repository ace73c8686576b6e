#!/usr/bin/env bash
# quern-check compares every level of instruction sets that this CPU has: it lists them, counts their cases, and fails when one
# is left out. Arguments: the command that runs quern-check. QN_ABSENT: levels that this CPU must not have.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    failures=$((failures + 1))
    echo "FAILED: $*"
    sed 's/^/    /' "$work/out" "$work/err" | head -n 20
}

# ends STATUS COMMAND... - the command must end with STATUS; output in $work/out and $work/err.
ends() {
    local expected=$1
    shift
    timeout 300 "$@" >"$work/out" 2>"$work/err"
    local status=$?
    [ $status -eq "$expected" ] || fail "$*: status $status, expected $expected"
}

ends 0 "$@" --list-levels
grep -vqE '^[a-z0-9]+ +(present|absent)$' "$work/out" && fail 'a line is not a level'
[ "$(head -n 1 "$work/out")" = 'ref      present' ] || fail 'the reference is not the first level'
present=$(sed -n 's/ *present$//p' "$work/out")
absent=$(sed -n 's/ *absent$//p' "$work/out")
for level in ${QN_ABSENT:-}; do
    grep -qw "$level" <<<"$absent" || fail "$level is not absent"
done
for level in $present $absent; do
    grep -q "^| \`QN_CPU\` .*\`$level\`" "$QN_SOURCE_DIR/docs/environment.md" || fail "docs/environment.md: QN_CPU lacks $level"
    grep -A 3 '^\.It Ev QN_CPU$' "$QN_SOURCE_DIR/docs/quern.1" | grep -qw "$level" || fail "docs/quern.1: QN_CPU lacks $level"
done

# skips OP LEVEL COMMAND... - a run without the level must fail, for the level alone.
skips() {
    local op=$1 level=$2
    shift 2
    ends 1 "$@" --op "$op" --skip-level "$level"
    [ "$(grep -c '^FAILED' "$work/out")" -eq 1 ] || fail "$op without $level: expected one failure"
    grep -q "^FAILED  $op level $level: this CPU has the level, and no case compared it$" "$work/out" ||
        fail "$op without $level: the level is not named"
}

ends 0 "$@" --op norm
for level in $present; do
    grep -qE "^levels .* $level [1-9][0-9]* cases" "$work/out" || fail "norm: $level was not compared"
done
for level in $absent; do
    grep -q "^levels .* $level absent" "$work/out" || fail "norm: $level is not absent"
done
for level in $present; do
    skips norm "$level" "$@"
done
for level in $absent; do
    ends 0 "$@" --op norm --skip-level "$level"
done
# Operations without levels, and without a variant of the reference, of which a few cases will do: quern_check_packed has all.
ends 0 "$@" --op peak
ends 0 "$@" --op packed --every 17
best=${present##*$'\n'}
[ "$best" = ref ] || skips packed "$best" "$@" --every 17
ends 2 "$@" --skip-level sse9
ends 2 "$@" --device tpu
exit $((failures > 0))
