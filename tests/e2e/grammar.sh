#!/usr/bin/env bash
# Constrained output against Python's jsonschema and re, with random schemas and regular expressions.
set -eu
python3 -c 'import jsonschema' 2>/dev/null || exit 77
python3 "$QN_SOURCE_DIR/tools/check_grammar.py" "$QN_BIN/tests/grammar_lines" "$QN_SOURCE_DIR/models/quern-demo.gguf" \
    --schemas 80 --regexes 80
