#!/usr/bin/env bash
# Header blocks and bodies that can be read in two ways are never two requests, over TCP and TLS (tests/server/serve_framing.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null && command -v openssl >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_framing.py" "$QN_SOURCE_DIR/models/quern-demo.gguf"
