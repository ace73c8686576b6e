#!/usr/bin/env bash
# Log probabilities of prompts, as lm-evaluation-harness reads them from quern serve, and those of quern batch (tests/server/serve_score.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_score.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$work"
