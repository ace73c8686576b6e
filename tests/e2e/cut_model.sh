#!/usr/bin/env bash
# Model files that are cut or overwritten while they are used: no command crashes (cut_model.py), and a server fails the requests of that
# model alone (tests/server/serve_cut.py). QN_SOAK: ten times as many runs.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$work" "$folder"' EXIT
runs=18
[ -z "${QN_SANITIZE}" ] || runs=6
[ -z "${QN_SOAK:-}" ] || runs=240
python3 "$QN_SOURCE_DIR/tests/e2e/cut_model.py" "$QN_BIN/quern" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$work" $runs || fail "a command crashed"
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_cut.py" "$folder" "$QN_SOURCE_DIR/models/quern-demo.gguf"
status=$?
[ $status -eq 0 ] || [ $status -eq 77 ] || fail "the server"
finish
