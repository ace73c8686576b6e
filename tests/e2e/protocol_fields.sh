#!/usr/bin/env bash
# Fields that other servers have: what is continued, called, constrained, and what is refused by name. Templates of model families where
# they are (QN_SHARED).
. "$(dirname "$0")/lib_cli.sh"

templates=()
for template in "$shared"/data/templates/Qwen*.jinja "$shared"/data/templates/*SmolLM3*.jinja; do
    [ ! -f "$template" ] || templates+=("$template")
done
python3 "$QN_SOURCE_DIR/tests/server/check_fields.py" --lines "$QN_BIN/tests/protocol_lines" --agent "$golden/agent.gguf" \
    --demo "$QN_SOURCE_DIR/models/quern-demo.gguf" --folder "$work" "${templates[@]}" >"$work/log" 2>&1
status=$?
cut -c 1-3000 "$work/log"
exit "$status"
