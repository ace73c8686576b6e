"""pyquern on a Python of Windows: the texts are those of quern on this system.

    package.py DEMO_MODEL FILE_OF_TEXT FILE_OF_IDS
"""

import json
import sys
import threading

import pyquern

demo, text, ids = sys.argv[1:]
model = pyquern.Model(demo, device="cpu")
expected = open(text, encoding="utf-8", newline="").read()
answer = model.generate("Once upon a time", max_tokens=24, seed=1)
assert answer.text == expected, (answer.text, expected)
assert "".join(model.generate("Once upon a time", max_tokens=24, seed=1, stream=True)) == expected
assert model.tokenizer.encode("größe 模型 🙂") == [int(i) for i in open(ids).read().split()], "tokens"

# Several threads, with one scheduler.
answers = [None] * 4


def ask(i):
    answers[i] = model.generate("Once upon a time", max_tokens=24, seed=1).text


threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(answers))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert answers == [expected] * len(answers), answers

schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
assert set(json.loads(model.generate("x", max_tokens=64, temperature=0, json_schema=schema).text)) == {"a"}

# Errors of the library are exceptions, with paths of Windows.
try:
    pyquern.Model("C:\\missing\\größe.gguf")
except OSError as error:
    assert "größe.gguf: cannot open: No such file" in str(error), error
else:
    raise AssertionError("a missing file")
print(f"pyquern {pyquern.__version__} on {sys.platform}, Python {sys.version.split()[0]}")
