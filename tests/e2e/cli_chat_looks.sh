#!/usr/bin/env bash
# chat as a user sees it: wrapped answers, editing, typing ahead, signals and files on an emulated terminal (chat_terminal.py).
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"
command -v python3 >/dev/null || exit 77
python_with terminal pyte==0.8.2 wcwidth==0.2.13
"$python" "$(dirname "$0")/chat_terminal.py" "$QN_BIN/quern" "$parrot" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$work" "$@" || fail "see above"
finish
