#!/usr/bin/env bash
# Strict schemas of the kinds of JSONSchemaBench, and random conditions, against Python's jsonschema. QN_SOAK (make soak): 400 and 5000, else 60
# and 300.
set -eu
python3 -c 'import jsonschema' 2>/dev/null || exit 77
[ -n "${QN_SOAK:-}" ] && kinds=400 conditions=5000 || kinds=60 conditions=300
python3 "$QN_SOURCE_DIR/tools/check_schema_kinds.py" "$QN_BIN/tests/grammar_lines" "$QN_SOURCE_DIR/models/quern-demo.gguf" --schemas "$kinds"
python3 "$QN_SOURCE_DIR/tools/check_conditions.py" "$QN_BIN/tests/grammar_lines" --schemas "$conditions"
