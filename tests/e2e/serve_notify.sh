#!/usr/bin/env bash
# What quern serve tells systemd (tests/server/serve_notify.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_notify.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$work"
