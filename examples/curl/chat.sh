#!/bin/sh
# A chat with quern serve: chat.sh "MESSAGE". QUERN_URL is the server (http://127.0.0.1:8080).
set -eu
curl --silent --show-error --fail-with-body "${QUERN_URL:-http://127.0.0.1:8080}/v1/chat/completions" \
    -H 'Content-Type: application/json' -d @- <<JSON
{"messages": [{"role": "user", "content": "$1"}], "max_tokens": 100}
JSON
