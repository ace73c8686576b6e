#!/usr/bin/env bash
# The memory of quern serve under the worst body of each endpoint (tests/server/serve_exhaustion.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
[ -z "${QN_SANITIZE:-}" ] || exit 77 # what is measured would be the sanitizer's
export QN_BIN
python3 "$QN_SOURCE_DIR/tests/server/serve_exhaustion.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$golden/agent.gguf"
