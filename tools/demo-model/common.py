"""What all stages share: one line of progress at a time, folders, files that are there whole or not at all.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import sys
import time

BEGAN = time.time()


def log(text):
    print(f"[{time.time() - BEGAN:7.1f}] {text}", flush=True)


def save(path, write, mode="w"):
    """write(file) into a temporary name, then renamed: a stage that is there is complete."""
    with open(path + ".part", mode, **({} if "b" in mode else {"encoding": "utf-8"})) as f:
        write(f)
    os.replace(path + ".part", path)


def save_json(path, value):
    save(path, lambda f: json.dump(value, f, indent=1, sort_keys=True))


def load_json(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def fail(text):
    print(f"demo-model: {text}", file=sys.stderr)
    raise SystemExit(1)
