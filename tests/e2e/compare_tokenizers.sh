#!/usr/bin/env bash
# Tokenisers beside sentencepiece and tokenizers, on vocabularies trained here: the ids of thousands of texts. QN_SOAK: of tens of thousands.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"
python_with tokenizers sentencepiece tokenizers

texts=2000
[ -z "$QN_SANITIZE" ] || texts=300
[ -z "${QN_SOAK:-}" ] || texts=50000
"$python" "$QN_SOURCE_DIR/tools/compare_tokenizers.py" --tokenize-lines "$QN_BIN/tests/tokenize_lines" --work "$work" --texts "$texts" \
    --corpus "$golden/demo.txt" >"$work/log" 2>&1
status=$?
cut -c 1-2000 "$work/log"
[ "$status" -ne 2 ] || exit 77
exit "$status"
