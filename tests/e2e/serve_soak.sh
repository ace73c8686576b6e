#!/usr/bin/env bash
# Twelve clients that cut connections, while models are swapped and keys, certificates and folders are read again (tests/server/serve_soak.py).
# QN_SOAK: 100 seconds of them.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null && command -v openssl >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$golden"/{parrot,caller,agent}.gguf "$folder"
seconds=8
[ -z "${QN_SOAK:-}" ] || seconds=100
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_soak.py" "$folder" --seconds "$seconds"
