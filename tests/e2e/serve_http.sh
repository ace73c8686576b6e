#!/usr/bin/env bash
# HTTP of quern serve: deadlines, sizes of headers, who may ask, the access log, and what is answered after SIGTERM
# (tests/server/serve_http.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_http.py" "$QN_SOURCE_DIR/models/quern-demo.gguf"
