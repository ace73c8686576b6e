#!/usr/bin/env bash
# The protocols without a server: bodies in, answers out, with the openai package as the client, schemas of the answers, random
# bodies. QN_SOAK: many of them.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"

python_with openai openai jsonschema
bodies=12
[ -z "$QN_SANITIZE" ] || bodies=4
[ -z "${QN_SOAK:-}" ] || bodies=1000
"$python" "$QN_SOURCE_DIR/tests/server/check_protocol.py" --lines "$QN_BIN/tests/protocol_lines" --random "$bodies" \
    --models "$QN_SOURCE_DIR/models/quern-demo.gguf" "$golden/caller.gguf" >"$work/log" 2>&1
status=$?
cut -c 1-3000 "$work/log"
[ "$status" -ne 2 ] || exit 77
exit "$status"
