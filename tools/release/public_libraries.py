#!/usr/bin/env python3
"""Moves Requires.private and Libs.private of pkg-config files to Requires and Libs: programs that link static archives need them all."""

import re
import sys


def move_private(text: str) -> str:
    for name in ("Requires", "Libs"):
        private = re.findall(rf"^{name}\.private:[ \t]*(.*)$", text, re.M)
        text = re.sub(rf"^{name}\.private:.*\n?", "", text, flags=re.M)
        extra = " ".join(value.strip() for value in private if value.strip())
        if not extra:
            continue
        if re.search(rf"^{name}:", text, re.M):
            text = re.sub(rf"^({name}:.*)$", lambda line: f"{line[1].rstrip()} {extra}", text, count=1, flags=re.M)
        else:
            text = f"{text.rstrip()}\n{name}: {extra}\n"
    return text


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        before = file.read()
    after = move_private(before)
    if after != before:
        with open(path, "w", encoding="utf-8") as file:
            file.write(after)
