#!/usr/bin/env bash
# quern serve under load: 64 requests at once, some cancelled, some malformed (tests/server/serve_load.py). QN_SOAK: 10,000 of them.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
requests=300
[ -z "$QN_SANITIZE" ] || requests=100
[ -z "${QN_SOAK:-}" ] || requests=10000
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_load.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" --requests "$requests"
