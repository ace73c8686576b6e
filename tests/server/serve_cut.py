"""A server of several models, of which one's file is cut while it is used: its requests end with an error, it is freed, and loaded again
once its file is whole; the other model answers all the time.

    serve_cut.py FOLDER MODEL

FOLDER is empty. QN_BIN names the folder of quern.
"""
import json
import os
import shutil
import sys
import time

from serve_process import LIMIT, Server, ask

folder, model = sys.argv[1], sys.argv[2]
PATHS = {name: os.path.join(folder, name + ".gguf") for name in ("cut", "whole")}


def replace(name):
    shutil.copy(model, PATHS[name] + ".new")
    os.replace(PATHS[name] + ".new", PATHS[name])


def complete(server, name, **more):
    return ask(server.port, "POST", "/v1/completions", {"model": name, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **more})


def text_of(answer):
    status, _, body = answer
    assert status == 200, body
    return json.loads(body)["choices"][0]["text"]


def expect_error(answer):
    """A failure of the server, which does not tell the folder."""
    status, _, body = answer
    assert status >= 500 and json.loads(body)["error"]["message"], answer
    assert folder not in body.decode(), body


def eventually_answers(server, name, expected):
    end = time.monotonic() + LIMIT
    while True:
        answer = complete(server, name)
        if answer[0] == 200:
            assert text_of(answer) == expected
            return
        assert answer[0] == 503, answer
        assert time.monotonic() < end, answer
        time.sleep(0.2)
        ask(server.port, "GET", "/v1/models")  # looks for files, and sees that this one has another size


for name in PATHS:
    replace(name)
with Server(None, "--models-dir", folder, "--memory", "1G", "-c", "512", "-t", "2") as server:
    expected = text_of(complete(server, "cut"))
    assert text_of(complete(server, "whole")) == expected
    for size in (100000, 1):
        os.truncate(PATHS["cut"], size)
        expect_error(complete(server, "cut", prompt=f"Another beginning, {size}"))
        assert text_of(complete(server, "whole")) == expected
        expect_error(complete(server, "cut"))  # it cannot be loaded again
        assert text_of(complete(server, "whole")) == expected
        replace("cut")
        eventually_answers(server, "cut", expected)
        assert text_of(complete(server, "whole")) == expected

# A single model stays: its requests fail, and the server goes on.
with Server(PATHS["cut"], "-c", "512", "-t", "2") as server:
    assert text_of(complete(server, "cut")) == expected
    os.truncate(PATHS["cut"], 100000)
    for _ in range(3):
        expect_error(complete(server, "cut", prompt="Another beginning"))
    assert ask(server.port, "GET", "/v1/models")[0] == 200
