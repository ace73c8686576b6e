# Shared by the tests of the program: a work folder, and ways to say what a command must do. Sourced, not run.
set -u
: "${QN_SOURCE_DIR:=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}"
: "${QN_SANITIZE:=}" "${QN_BIN:=$QN_SOURCE_DIR/build}"
golden=$QN_SOURCE_DIR/tests/golden
parrot=$golden/parrot.gguf
shared=${QN_SHARED:-$QN_SOURCE_DIR/../shared}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
export XDG_STATE_HOME=$work/state # nobody's history
export QN_BENCH_MIB=16 # no test looks at the bandwidth that bench measures
export QN_DEVICE=cpu # what is promised to the last bit is promised there

# fail TEXT... - note a failure and show what the last command printed.
fail() {
    failures=$((failures + 1))
    echo "FAILED: $*"
    [ ! -s "$work/err" ] || sed 's/^/    stderr: /' "$work/err" | head -n 5
    [ ! -s "$work/out" ] || head -c 500 "$work/out" | sed 's/^/    stdout: /'
}

# quern ARGS... - the program, with nothing on standard input unless it is redirected; output in $work/out and $work/err, status in
# $status.
quern() {
    timeout 120 "$QN_BIN/quern" "$@" >"$work/out" 2>"$work/err"
    status=$?
}

# refuses STATUS PATTERN ARGS... - the program must end with STATUS, print nothing on standard output and exactly one line on
# standard error, which begins "quern: " and matches PATTERN.
refuses() {
    local expected=$1 pattern=$2
    shift 2
    quern "$@" </dev/null
    [ $status -eq "$expected" ] || fail "quern $*: status $status, expected $expected"
    [ ! -s "$work/out" ] || fail "quern $*: printed something on standard output"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "quern $*: expected one line on standard error"
    grep -q "^quern: .*$pattern" "$work/err" || fail "quern $*: the error does not match '$pattern'"
}

# gives TEXT ARGS... - the program must succeed and print exactly TEXT.
gives() {
    local expected=$1
    shift
    quern "$@" </dev/null
    [ $status -eq 0 ] || fail "quern $*: status $status"
    [ "$(cat "$work/out"; echo x)" = "${expected}x" ] || fail "quern $*: expected '$expected'"
}

# needs_gpu - compiles the kernels of the GPU that this build does not have, several at a time, once for all tests of a build; a test is
# skipped where there is no GPU.
needs_gpu() {
    export XDG_CACHE_HOME=$QN_BIN/gpu-cache
    timeout 1000 "$QN_BIN/quern" kernels --device cuda >"$work/out" 2>"$work/err"
    status=$?
    if [ $status -ne 0 ] && grep -q -E 'no NVIDIA driver|no device is visible|CUDA_ERROR_NO_DEVICE' "$work/err"; then
        sed 's/^quern: /skipped: /' "$work/err"
        exit 77
    fi
    [ $status -eq 0 ] || fail 'quern kernels --device cuda'
}

# wait_until COMMAND... - waits until it succeeds, at most a minute: other programs may have the machine.
wait_until() {
    for _ in {1..600}; do
        ! "$@" || return 0
        sleep 0.1
    done
    return 1
}

# starts OUT ERR ARGS... - quern serve on a free port; its process in $server and, if it became ready, its address in $url. The files of a
# server before are removed first: they say "ready" too.
starts() {
    local out=$1 err=$2
    shift 2
    rm -f "$out" "$err"
    "$QN_BIN/quern" serve "$@" --port 0 >"$out" 2>"$err" </dev/null &
    server=$!
    for _ in {1..600}; do
        ! grep -qs '^ready' "$out" && kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    url=
    ! grep -qs '^ready' "$out" || url=$(sed -n 's/^listening on //p' "$out")
}

# stops TEXT - ends the server of `starts`, which must succeed.
stops() {
    kill -TERM $server 2>/dev/null
    wait $server || fail "$1: status $?"
}

finish() {
    [ $failures -eq 0 ] || exit 1
    exit 0
}
