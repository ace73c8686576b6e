"""A chat from Python, as a stream: python chat.py model.gguf "Tell me a story about a fox."

SPDX-License-Identifier: Apache-2.0
"""

import sys

import pyquern

model = pyquern.Model(sys.argv[1])
messages = [{"role": "user", "content": sys.argv[2]}]
for event in model.chat(messages, max_tokens=200, stream=True):
    if event.type == "content":  # or reasoning, tool_call, arguments, tool_call_end
        print(event.text, end="", flush=True)
print()
