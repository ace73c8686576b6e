#!/usr/bin/env bash
# Answers that a limit of tokens cuts, at each limit, in all protocols: no piece of a delimiter comes. The templates are golden ones and
# those of model families where they are (QN_SHARED). QN_SOAK: all of them.
. "$(dirname "$0")/lib_cli.sh"

templates=("$golden"/templates/tools_json.jinja "$golden"/templates/tools_xml.jinja)
[ ! -f "$shared/data/templates/Qwen-Qwen3-0.6B.jinja" ] || templates+=("$shared/data/templates/Qwen-Qwen3-0.6B.jinja")
for name in Qwen3.5-4B Qwen3-Coder; do
    [ -z "${QN_SOAK:-}" ] || templates+=("$shared/data/templates/$name.jinja")
done
[ -z "$QN_SANITIZE" ] || templates=() # takes an hour; test_output_parser and fuzz_output have all cuts of the parser
python3 "$QN_SOURCE_DIR/tests/server/check_cuts.py" --lines "$QN_BIN/tests/protocol_lines" --agent "$golden/agent.gguf" \
    --caller "$golden/caller.gguf" \
    --demo "$QN_SOURCE_DIR/models/quern-demo.gguf" ${QN_SOAK:+--all} "${templates[@]}" >"$work/log" 2>&1
status=$?
cut -c 1-3000 "$work/log"
exit "$status"
