#!/usr/bin/env bash
# cmake/need-packages.sh installs what is missing, waits while another process holds a lock of the packages, and fails at once for any
# other reason. Programs of Debian are played by scripts; the names of the locks are apt-get's own, in a folder of the test.
set -u
: "${QN_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
    failures=$((failures + 1))
    echo "FAILED: $*"
    cat "$work/out" "$work/calls" 2>/dev/null | head -n 20
}
mkdir "$work/bin"
program() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
program dpkg-query 'case ${!#} in gcc | libmicrohttpd-dev) exit 1 ;; esac; echo installed'
program id 'echo 0'
program sleep 'exit 0'
# Fails with the text of $QN_LOCK/COMMAND while lines are left in it, one a call.
program apt-get 'echo "$*" >>"$QN_LOCK/../calls"
text=$(head -n 1 "$QN_LOCK/$1")
[ -z "$text" ] && exit 0
sed -i 1d "$QN_LOCK/$1"
echo "$text" >&2
exit 100'

# need UPDATE INSTALL - runs it, with lines of what apt-get update and apt-get install fail with.
need() {
    rm -rf "$work/lock" "$work/calls"
    mkdir "$work/lock"
    printf '%s' "$1" >"$work/lock/update"
    printf '%s' "$2" >"$work/lock/install"
    QN_LOCK=$work/lock PATH="$work/bin:$PATH" timeout 60 "$QN_SOURCE_DIR/cmake/need-packages.sh" build >"$work/out" 2>&1
    status=$?
}
lists='E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)
E: Unable to lock directory /var/lib/apt/lists/
'
archives='E: Could not get lock /var/cache/apt/archives/lock. It is held by process 7 (apt-get)
'
need '' ''
[ $status -eq 0 ] || fail "status $status"
grep -q '^install .*-o DPkg::Lock::Timeout=[1-9].* gcc$' "$work/calls" || fail 'apt-get does not wait for the lock of dpkg'
grep -q '^install .* libmicrohttpd-dev$' "$work/calls" || fail 'what is useful was not installed'
need "$lists" "$archives"
[ $status -eq 0 ] || fail "held locks: status $status"
[ "$(grep -c '^update' "$work/calls")" -eq 3 ] && [ "$(grep -c '^install.* gcc$' "$work/calls")" -eq 2 ] || fail 'held locks: not tried again'
grep -q 'waiting' "$work/out" || fail 'held locks: nothing says what is waited for'
need '' 'E: Unable to locate package gcc
'
[ $status -eq 1 ] && [ "$(grep -c '^install' "$work/calls")" -eq 1 ] || fail "a package that is not there: status $status"
grep -q 'Unable to locate package gcc' "$work/out" && grep -q 'the command was: apt-get install' "$work/out" || fail 'a package that is not there: the reason'
exit $((failures > 0))
