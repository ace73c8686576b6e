#!/bin/sh
# A tool call: the answer has the call's name and arguments in "tool_calls". What the tool says is then a message of the role "tool", with the
# call's id. tools.sh "MESSAGE"; the model needs a chat template with tools.
set -eu
curl --silent --show-error --fail-with-body "${QUERN_URL:-http://127.0.0.1:8080}/v1/chat/completions" \
    -H 'Content-Type: application/json' -d @- <<JSON
{
  "messages": [{"role": "user", "content": "$1"}],
  "tools": [{"type": "function", "function": {
    "name": "look_up",
    "description": "Looks a word up in a dictionary",
    "parameters": {"type": "object", "properties": {"text": {"type": "string", "maxLength": 20}}, "required": ["text"]}
  }}],
  "tool_choice": "required",
  "max_tokens": 200
}
JSON
