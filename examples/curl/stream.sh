#!/bin/sh
# The same as a stream: a line "data: {...}" for each piece of the answer, and "data: [DONE]" at its end. stream.sh "MESSAGE"
set -eu
curl --silent --show-error --fail-with-body --no-buffer "${QUERN_URL:-http://127.0.0.1:8080}/v1/chat/completions" \
    -H 'Content-Type: application/json' -d @- <<JSON
{"messages": [{"role": "user", "content": "$1"}], "max_tokens": 100, "stream": true}
JSON
