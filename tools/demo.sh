#!/usr/bin/env bash
# make demo: lets the demo model tell two stories and prints its speed and memory; nothing but the repository is needed. demo.sh BUILD
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
model=models/quern-demo.gguf
ask() {
    echo
    echo "  quern run -m $model $*" | sed 's/ -p \(.*\)/ -p "\1"/'
    echo
    "$build/quern" run -m "$model" "$@"
    echo
}
ask --temp 0.6 --seed 1 -n 300 -p "Once upon a time"
ask --temp 0.6 --seed 1 -n 300 --kv aura4 --chat -p "Tell me a story about a fox and a lantern."
