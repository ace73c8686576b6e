#!/usr/bin/env bash
# Threads and processors: notes about more threads than there are processors, what -t auto is, and --numa.
. "$(dirname "$0")/lib_cli.sh"
ask=(run -m "$QN_SOURCE_DIR/models/quern-demo.gguf" -p Hello -n 4 --temp 0)
n=$(nproc)

quern "${ask[@]}" -t 1
[ $status -eq 0 ] || fail "-t 1: status $status"
cp "$work/out" "$work/expected"
same() { [ $status -eq 0 ] && cmp -s "$work/out" "$work/expected" || fail "$1: another text, or status $status"; }
! grep -q 'threads:' "$work/err" || fail 'a note about one thread'
quern "${ask[@]}" -t $((n + 3))
same "-t $((n + 3))"
grep -q "^quern: note: threads: $((n + 3)) on $n processors: they wait for each other\$" "$work/err" || fail 'no note about more threads than processors'
quern "${ask[@]}" -t "$n"
same "-t $n"
! grep -q 'processors: they wait' "$work/err" || fail 'a note about as many threads as processors'
quern "${ask[@]}" -t auto
same '-t auto'
refuses 2 '-t: ' "${ask[@]}" -t 0
refuses 2 '-t: ' "${ask[@]}" -t 1025
refuses 2 '-t: ' "${ask[@]}" -t many

# One processor, by affinity.
if command -v taskset >/dev/null; then
    first=$(taskset -cp $$ | sed 's/.*: *//; s/[-,].*//')
    one() { taskset -c "$first" "$QN_BIN/quern" "$@" >"$work/out" 2>"$work/err"; status=$?; }
    one kernels --device cpu
    grep -q -x -E 'processors  1 core(; a quota of [0-9.]+ processors)?; -t auto is 1 thread' "$work/out" || fail 'one processor is not seen'
    one "${ask[@]}" -t 2
    same 'two threads on one processor'
    grep -q '^quern: note: threads: 2 on 1 processors: ' "$work/err" || fail 'no note about two threads on one processor'
fi

# --numa changes where memory is, and no text.
for mode in off distribute isolate numactl; do
    quern "${ask[@]}" --numa $mode
    same "--numa $mode"
done
refuses 2 "--numa: 'everywhere' is not one of off, distribute, isolate, numactl" "${ask[@]}" --numa everywhere
if ! [ -e /sys/devices/system/node/node1 ]; then
    quern "${ask[@]}" --numa distribute
    [ "$(grep -c '^quern: note: --numa distribute: all processors are on one NUMA node$' "$work/err")" -eq 1 ] || fail 'no note about one node'
    quern "${ask[@]}" --numa distribute -q
    ! grep -q numa "$work/err" || fail 'a note with -q'
fi
finish
