#!/usr/bin/env bash
# Long fuzzing: fuzz_long.sh TARGETS FUZZ WORK [NAME...] runs the programs TARGETS/fuzz_* (or those named) for QN_FUZZ_SECONDS (1800) of
# processor time each, QN_FUZZ_JOBS of them at a time (one a core), in pieces of QN_FUZZ_PIECE seconds (120): a piece begins with the inputs
# that the pieces before it found. FUZZ is tests/fuzz, for corpora and dictionaries. WORK keeps inputs, logs and counts, so that a run which
# is stopped goes on where it was. At the end a table: target, runs, minutes of processor time, findings, which are in WORK/findings. It
# needs bash and coreutils alone; $QN_SOURCE_DIR is the folder with tests/golden where that is not the source's.
set -u
[ $# -ge 3 ] || { echo "usage: fuzz_long.sh TARGETS FUZZ WORK [NAME...]" >&2 && exit 2; }
targets=$(cd "$1" && pwd) && fuzz=$(cd "$2" && pwd) || exit 1
mkdir -p "$3/findings" && work=$(cd "$3" && pwd) || exit 1
shift 3
seconds=${QN_FUZZ_SECONDS:-1800} piece=${QN_FUZZ_PIECE:-120} jobs=${QN_FUZZ_JOBS:-$(nproc)} most_findings=10
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

TIMEFORMAT='%3U %3S'

# milliseconds FILE - the processor time in it, as `time` has written it.
milliseconds() {
    local user system
    read -r user system < <(tail -n 1 "$1")
    echo $((10#${user/./} + 10#${system/./}))
}

# runs_of LOG - how many inputs a piece ran.
runs_of() {
    local line runs=0
    while read -r line; do
        case $line in stat::number_of_executed_units:*) runs=${line##* } ;; esac
    done <"$1"
    echo "$runs"
}

# The pieces of a target. WORK/NAME/sum has runs, milliseconds, findings.
run_target() {
    local name=$1 own=$work/$1 runs=0 time=0 findings=0 options length status words=$fuzz/dictionaries/$1
    mkdir -p "$own/corpus"
    [ ! -s "$own/sum" ] || read -r runs time findings <"$own/sum"
    while [ "$time" -lt $((seconds * 1000)) ] && [ "$findings" -lt $most_findings ]; do
        length=$(((seconds * 1000 - time) / 1000 + 1))
        options=(-max_total_time=$((length < piece ? length : piece)) -timeout=10 -rss_limit_mb=2000 -malloc_limit_mb=1000 -close_fd_mask=3
                 -print_final_stats=1 -artifact_prefix="$work/findings/$name-")
        [ ! -f "$words" ] || options+=(-dict="$words")
        { time "$targets/fuzz_$name" "${options[@]}" "$own/corpus" "$fuzz/corpus/$name" >"$own/log" 2>&1; } 2>"$own/time"
        status=$?
        runs=$((runs + $(runs_of "$own/log"))) time=$((time + $(milliseconds "$own/time")))
        if [ $status -ne 0 ]; then
            findings=$((findings + 1))
            cp "$own/log" "$work/findings/$name-$findings.log"
        fi
        echo "$runs $time $findings" >"$own/sum"
    done
}

names=("$@")
[ $# -gt 0 ] || for target in "$targets"/fuzz_*; do
    [ ! -x "$target" ] || names+=("${target##*/fuzz_}")
done
for name in "${names[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
        wait -n
    done
    run_target "$name" &
done
wait

printf '%-14s %12s %12s %9s\n' target runs CPU-minutes findings
failed=0
for name in "${names[@]}"; do
    read -r runs time findings <"$work/$name/sum"
    printf '%-14s %12s %12s %9s\n' "$name" "$runs" "$((time / 60000)).$((time / 6000 % 10))" "$findings"
    failed=$((failed + findings))
done
[ $failed -eq 0 ]
