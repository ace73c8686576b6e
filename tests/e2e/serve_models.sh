#!/usr/bin/env bash
# quern serve with several models under a memory limit that holds two (tests/server/serve_models.py). QN_SOAK: more requests, and streams
# that wait long for a model.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for type in q8_0 q4_0 q4_1; do
    "$QN_BIN/quern" quantize "$QN_SOURCE_DIR/models/quern-demo.gguf" "$folder/demo-$type.gguf" $type >/dev/null 2>&1
done
head -c 100000 "$QN_SOURCE_DIR/models/quern-demo.gguf" >"$folder/broken.gguf"
requests=100
[ -z "$QN_SANITIZE" ] || requests=60
[ -z "${QN_SOAK:-}" ] || requests=400
export QN_BIN QN_SANITIZE QN_SOAK
python3 "$QN_SOURCE_DIR/tests/server/serve_models.py" "$folder" "$QN_SOURCE_DIR/models/quern-demo.gguf" --requests "$requests"
