#!/usr/bin/env bash
# One short fuzz run: run_fuzz.sh TARGET CORPUS, for QN_FUZZ_SECONDS (20). New inputs go to a folder that is thrown away, so
# that the corpus in the tree stays as it is; an input that fails is copied out and named. tests/fuzz_long.sh runs for hours.
set -eu
target=$1
corpus=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/new"
folders=("$work/new")
[ -d "$corpus" ] && folders+=("$corpus")
# The mask: what the program prints is thrown away.
options=(-max_total_time="${QN_FUZZ_SECONDS:-20}" -timeout=10 -rss_limit_mb=2000 -malloc_limit_mb=1000 -close_fd_mask=3)
words=$(dirname "$(dirname "$corpus")")/dictionaries/$(basename "$corpus")
[ ! -f "$words" ] || options+=(-dict="$words")
if ! "$target" "${options[@]}" -artifact_prefix="$work/" "${folders[@]}" >"$work/log" 2>&1; then
    tail -n 60 "$work/log"
    for input in "$work"/crash-* "$work"/timeout-* "$work"/oom-* "$work"/leak-*; do
        [ -e "$input" ] || continue
        kept="$(dirname "$target")/$(basename "$input")"
        cp "$input" "$kept"
        echo "the input is $kept"
    done
    exit 1
fi
tail -n 2 "$work/log"
