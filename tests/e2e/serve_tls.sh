#!/usr/bin/env bash
# Versions, key exchanges and ciphers of TLS (tests/server/serve_tls.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null && command -v openssl >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_tls.py" "$QN_SOURCE_DIR/models/quern-demo.gguf"
