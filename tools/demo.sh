#!/usr/bin/env bash
# make demo: fetches the demo model, asks it a question, and prints its answer, speed and memory. demo.sh BUILD
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
model=$(python3 tools/fetch_demo_model.py)
question="What is a hand mill used for? Answer in two sentences."
echo
echo "  quern run -m $model --chat --temp 0 -p \"$question\""
echo
"$build/quern" run -m "$model" --chat --temp 0 -n 200 -p "$question"
echo
