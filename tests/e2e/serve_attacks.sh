#!/usr/bin/env bash
# quern serve under attack from another loopback address (tests/server/serve_attacks.py). QN_SOAK: 10,000 idle connections.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
idle=500
[ -z "${QN_SOAK:-}" ] || idle=10000
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_attacks.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" --idle "$idle"
