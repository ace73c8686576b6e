#!/usr/bin/env bash
# Tasks of lm-evaluation-harness through quern serve and through transformers (tests/server/serve_lm_eval.py), where the Python of
# QN_HF_PYTHON (else python3) has both and tools/fetch_smollm2.py has fetched SmolLM2. Minutes, so only with QN_SOAK.
. "$(dirname "$0")/lib_cli.sh"
model=${XDG_CACHE_HOME:-$HOME/.cache}/quern/smollm2-135m-instruct-q4_1.gguf
[ -n "${QN_SOAK:-}" ] && [ -z "$QN_SANITIZE" ] && [ -e "$model" ] || exit 77
export QN_BIN
"${QN_HF_PYTHON:-python3}" "$QN_SOURCE_DIR/tests/server/serve_lm_eval.py" "$model" "$work" --float32
exit $?
