#!/usr/bin/env bash
# When quern serve hears of bytes and of ends (tests/server/serve_events.py); test_windows.sh does the same with quern.exe.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_events.py" "$QN_SOURCE_DIR/models/quern-demo.gguf"
