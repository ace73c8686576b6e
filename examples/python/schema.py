"""An answer that fits a JSON schema: python schema.py model.gguf "Describe a fox."

SPDX-License-Identifier: Apache-2.0
"""

import json
import sys

import pyquern

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "colour": {"enum": ["red", "grey", "white"]},
    },
    "required": ["name", "age", "colour"],
    "additionalProperties": False,
}

model = pyquern.Model(sys.argv[1])
answer = model.generate(sys.argv[2], json_schema=SCHEMA)
print(json.dumps(json.loads(answer.text), indent=2))
