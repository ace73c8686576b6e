#!/usr/bin/env bash
# quern serve with the Python packages that people use (tests/server/serve_clients.py). Random bodies too; QN_SOAK: many of them.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"

python_with serve openai==2.54.0 jsonschema==4.26.0 litellm==1.106.2 openai-agents==0.20.0 'pydantic-ai-slim[openai]==2.31.1' ollama==0.6.3
bodies=4
[ -z "$QN_SANITIZE" ] || bodies=2
[ -z "${QN_SOAK:-}" ] || bodies=500
export QN_BIN QN_SANITIZE
"$python" "$QN_SOURCE_DIR/tests/server/serve_clients.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$golden/caller.gguf" \
    "$golden/agent.gguf" --random "$bodies" >"$work/log" 2>&1
status=$?
cut -c 1-3000 "$work/log"
[ "$status" -ne 2 ] || exit 77
exit "$status"
