#!/usr/bin/env bash
# quern serve: embeddings, prompts with a gap, slots, Ollama's API (tests/server/serve_routes.py).
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_routes.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$golden" "$work"
