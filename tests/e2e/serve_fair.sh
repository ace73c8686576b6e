#!/usr/bin/env bash
# quern serve with two keys: the large requests of one do not hold up the small ones of the other (tests/server/serve_fair.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_fair.py" "$QN_SOURCE_DIR/models/quern-demo.gguf"
