#!/usr/bin/env bash
# Constrained output against Python's jsonschema and re: random schemas and regular expressions, and arguments of tool calls.
set -eu
python3 -c 'import jsonschema' 2>/dev/null || exit 77
python3 "$QN_SOURCE_DIR/tools/check_grammar.py" "$QN_BIN/tests/grammar_lines" "$QN_SOURCE_DIR/models/quern-demo.gguf" \
    --schemas 80 --regexes 80
python3 "$QN_SOURCE_DIR/tools/check_calls.py" "$QN_BIN/tests/grammar_lines" "$QN_SOURCE_DIR/models/quern-demo.gguf" \
    --walks 12 --random 60
