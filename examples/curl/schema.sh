#!/bin/sh
# An answer that fits a JSON schema: schema.sh "MESSAGE"
set -eu
curl --silent --show-error --fail-with-body "${QUERN_URL:-http://127.0.0.1:8080}/v1/chat/completions" \
    -H 'Content-Type: application/json' -d @- <<JSON
{
  "messages": [{"role": "user", "content": "$1"}],
  "response_format": {"type": "json_schema", "json_schema": {"name": "animal", "strict": true, "schema": {
    "type": "object",
    "properties": {
      "name": {"type": "string", "maxLength": 20},
      "age": {"type": "integer", "minimum": 0, "maximum": 99},
      "colour": {"enum": ["red", "grey", "white"]}
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": false
  }}}
}
JSON
