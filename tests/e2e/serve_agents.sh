#!/usr/bin/env bash
# quern serve with the packages of Anthropic and OpenAI, and with first requests of agents (tests/server/serve_agents.py).
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"

python_with agents anthropic==2.12.0 openai==3.54.0
export QN_BIN QN_SANITIZE
"$python" "$QN_SOURCE_DIR/tests/server/serve_agents.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$golden/agent.gguf" >"$work/log" 2>&1
status=$?
cut -c 1-3000 "$work/log"
[ "$status" -ne 2 ] || exit 77
exit "$status"
