#!/usr/bin/env bash
# Answers of the demo model constrained by a corpus of schemas, and documents of these. QN_SOAK (make soak): 200 schemas, else 20.
set -eu
python3 -c 'import jsonschema' 2>/dev/null || exit 77
python3 "$QN_SOURCE_DIR/tools/check_corpus.py" "$QN_BIN" "$QN_SOURCE_DIR/models/quern-demo.gguf" --schemas "$([ -n "${QN_SOAK:-}" ] && echo 200 || echo 20)"
