#!/usr/bin/env python3
"""Constrained answers of a model over a corpus of JSON schemas: the kinds of public benchmarks, and definitions of agents' tools, drawn
from a seed. Documents made for the schemas must fit; answers of `quern batch` at temperature 1.5 must finish and validate, those that are
cut must be the beginning of a document that validates. Needs jsonschema, build/quern and build/tests/grammar_lines.

    tools/check_corpus.py BUILD MODEL.gguf [--schemas 200] [--documents 5] [--seed 1] [--tokens 1000]
    tools/check_corpus.py BUILD MODEL.gguf --files DIR     only: how many of the schemas in DIR/**/*.json compile, and why others do not
"""
import argparse
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import jsonschema

WORDS = ["path", "query", "name", "id", "mode", "count", "tags", "limit", "user", "title", "line", "größe", "file path", "a/b", "x~y"]
TEXT = "abc XYZ,.é世😀\"\\/\n\t-_0"
PATTERNS = {"^[a-z]{1,8}$": "abc", "^[A-Z]{2}-\\d{1,4}$": "AB-12", "^#[0-9a-f]{6}$": "#00ff7a", "^\\d{1,3}(\\.\\d{1,3}){3}$": "10.0.0.1"}
FORMATS = {"date": "2026-11-23", "time": "10:20:30Z", "date-time": "2026-11-23T10:20:30.5+01:00", "email": "a.b@example.org",
           "uuid": "01234567-89ab-cdef-0123-456789abcdef", "ipv4": "192.168.0.1", "ipv6": "fe80::1", "hostname": "a-b.example.org",
           "uri": "https://example.org/a?b=c", "duration": "P1DT2H"}
TOOLS = ["read_file", "write_file", "edit_file", "run_command", "search_files", "list_directory", "apply_patch", "fetch_url"]


class Corpus:
    """Each kind returns a schema and a function that makes a document of it."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def text(self, low, high):
        return "".join(self.r.choice(TEXT) for _ in range(self.r.randint(low, high)))

    def string(self, _):
        low, high = self.r.choice([(0, 10), (1, 24), (3, 40)])
        return {"type": "string", "minLength": low, "maxLength": high}, lambda: self.text(low, high)

    def pattern(self, _):
        p = self.r.choice(list(PATTERNS))
        return {"type": "string", "pattern": p}, lambda: PATTERNS[p]

    def form(self, _):
        f = self.r.choice(list(FORMATS))
        schema = {"type": "string", "format": f}
        return ({**schema, "maxLength": 30} if f in ("email", "uri", "duration") else schema), lambda: FORMATS[f]

    def number(self, _):
        low = self.r.randint(-50, 50)
        kind = self.r.choice(["integer", "number"])
        bounds = {"minimum": low, "maximum": low + 100} if self.r.random() < .6 else {"exclusiveMinimum": low, "exclusiveMaximum": low + 9}
        return {"type": kind, **bounds}, lambda: low + self.r.randint(1, 8)

    def scalar(self, _):
        return self.r.choice([({"type": "boolean"}, lambda: True), ({"type": "null"}, lambda: None), ({"const": "v1.0\n"}, lambda: "v1.0\n"),
                              ({"const": 7}, lambda: 7)])

    def enum(self, _):
        values = self.r.sample(["fast", "slow", "größer", "a\"b", 1, 2.5, None, True, [1], {"k": "v"}], self.r.randint(1, 6))
        return {"enum": values}, lambda: self.r.choice(values)

    def nullable(self, depth):
        schema, make = self.r.choice([self.string, self.number])(depth)
        return {**schema, "type": [schema["type"], "null"]}, lambda: self.r.choice([make, lambda: None])()

    def array(self, depth):
        schema, make = self.any(depth + 1)
        low = self.r.randint(0, 2)
        high = low + self.r.randint(0, 2)
        return ({"type": "array", "items": schema, "minItems": low, "maxItems": high},
                lambda: [make() for _ in range(self.r.randint(low, high))])

    def any_of(self, depth):
        parts = [self.any(depth + 1) for _ in range(self.r.randint(2, 3))]
        return {"anyOf": [s for s, _ in parts]}, lambda: self.r.choice(parts)[1]()

    def all_of(self, depth):
        schema, make = self.object(depth + 1)
        return {"allOf": [schema, {"type": "object", "description": "Both."}]}, make

    def members(self, depth, names):
        parts = {n: self.any(depth + 1) for n in names}
        required = [n for n in names if self.r.random() < .6]

        def make():
            chosen = [n for n in names if n in required or self.r.random() < .5]
            return {n: parts[n][1]() for n in chosen}
        return {"properties": {n: s for n, (s, _) in parts.items()}, "required": required}, make

    def object(self, depth):
        body, make = self.members(depth, self.r.sample(WORDS, self.r.randint(1, 5)))
        return {"type": "object", **body, "additionalProperties": False}, make

    def map(self, depth):
        schema, make = self.any(2)
        return ({"type": "object", "additionalProperties": schema, "maxProperties": 3},
                lambda: {self.text(1, 5) + str(i): make() for i in range(self.r.randint(0, 3))})

    def recursive(self, depth):
        inner, make_inner = self.string(depth)
        schema = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
            "value": inner, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
            "children": {"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/node"}}}, "required": ["value"],
            "additionalProperties": False}}}

        def make(level=0):
            node = {"value": make_inner()}
            if level < 4 and self.r.random() < .6:
                node["next"] = self.r.choice([None, make(level + 1)])
            if level < 3 and self.r.random() < .4:
                node["children"] = [make(level + 1)]
            return node
        return schema, make

    def tool(self, depth):
        name = self.r.choice(TOOLS)
        body, make = self.members(1, self.r.sample(WORDS, self.r.randint(2, 5)))
        arguments = {"type": "object", **body, "additionalProperties": False}
        for i, schema in enumerate(arguments["properties"].values()):
            schema["description"] = f"What argument {i} of the tool is for."
        return ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "title": name, "properties": {
            "name": {"const": name}, "arguments": arguments}, "required": ["name", "arguments"], "additionalProperties": False},
            lambda: {"name": name, "arguments": make()})

    def any(self, depth):
        leaves = [self.string, self.string, self.number, self.scalar, self.enum, self.nullable, self.pattern, self.form]
        return self.r.choice(leaves if depth > 2 else leaves + [self.object, self.array, self.any_of, self.all_of])(depth)

    def schema(self, i):
        return [self.tool, self.object, self.recursive, self.any_of, self.array, self.tool, self.object, self.map, self.all_of,
                self.tool, self.tool, self.object, self.recursive, self.any_of, self.array, self.tool, self.object, self.nullable,
                self.all_of, self.enum][i % 20](0)

    def spell(self, value):
        return json.dumps(value, ensure_ascii=self.r.random() < .5)


class Lines:
    def __init__(self, build, *arguments):
        self.program = subprocess.Popen([f"{build}/tests/grammar_lines", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def ask(self, line):
        self.program.stdin.write(json.dumps(line) + "\n")
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())


def validates(schema, text):
    try:
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text))
    except ValueError:
        return False


def is_bounded(schema):
    """Whether documents have a greatest length: keys, recursion and the digits of fractions have none."""
    if isinstance(schema, list):
        return all(map(is_bounded, schema))
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type", ())
    return not (isinstance(schema.get("additionalProperties", False), dict) or "$ref" in schema or "number" in ([kinds] if isinstance(kinds, str)
                else kinds)) and all(map(is_bounded, schema.values()))


def answers(build, model, schemas, tokens):
    """The text and whether it is finished, of each schema."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/in.jsonl", "w") as f:
            for i, schema in enumerate(schemas):
                f.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {
                    "messages": [{"role": "user", "content": "Once upon a time"}], "temperature": 1.5, "top_p": 1, "seed": i,
                    "max_tokens": tokens, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True,
                                                                                                  "schema": schema}}}}) + "\n")
        subprocess.run([f"{build}/quern", "batch", "-m", model, f"{folder}/in.jsonl", f"{folder}/out.jsonl", "--ordered", "-c",
                        str(tokens + 64)], check=True, stderr=subprocess.DEVNULL)
        for line in open(f"{folder}/out.jsonl"):
            line = json.loads(line)
            if line["error"]:
                sys.exit(line["error"]["message"])
            choice = line["response"]["body"]["choices"][0]
            yield choice["message"]["content"] or "", choice["finish_reason"] == "stop"


def count_files(lines, folder):
    kinds, why, slowest = collections.defaultdict(lambda: [0, 0, 0]), collections.Counter(), 0
    for path in sorted(pathlib.Path(folder).rglob("*.json")):
        try:
            schema = json.loads(path.read_text())
        except ValueError:
            continue
        answer = lines.ask({"schema": schema, "strict": True})
        slowest = max(slowest, answer["milliseconds"])
        kinds[path.parent.name][0] += 1
        kinds[path.parent.name][1] += "error" not in answer
        kinds[path.parent.name][2] += "error" not in lines.ask({"schema": schema})
        if "error" in answer:
            why[re.sub(r"#\S*:|\d+|\"[^\"]*\"|'[^']{20,}'", "*", answer["error"])[:100]] += 1
    kinds["all"] = [sum(k[i] for k in kinds.values()) for i in range(3)]
    for kind, (n, strict, lenient) in kinds.items():
        print(f"{kind:24} {n:5} schemas, {strict:5} compile strictly, {lenient:5} with keywords ignored")
    print(f"slowest {slowest:.1f} ms")
    for text, n in why.most_common(25):
        print(f"{n:6}  {text}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("model")
    p.add_argument("--schemas", type=int, default=200)
    p.add_argument("--documents", type=int, default=5)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tokens", type=int, default=1000)
    p.add_argument("--files")
    a = p.parse_args()
    lines = Lines(a.build)
    if a.files:
        return count_files(lines, a.files)
    corpus = Corpus(a.seed)
    made = [corpus.schema(i) for i in range(a.schemas)]
    n, failed = collections.Counter(), 0

    def wrong(what, text, schema):
        nonlocal failed
        failed += 1
        print(f"{what}: {text}\n    {json.dumps(schema)}")
    for schema, make in made:
        texts = [corpus.spell(make()) for _ in range(a.documents)]
        answer = lines.ask({"schema": schema, "strict": True, "texts": texts})
        if "error" in answer:
            wrong(answer["error"], "", schema)
            continue
        for text, (fits, ends, _) in zip(texts, answer["texts"]):
            n["documents"] += 1
            if not validates(schema, text):
                wrong("the document does not validate", text, schema)
            elif not ends:
                wrong(f"refused at byte {fits}", text, schema)
    for (schema, _), (text, is_finished) in zip(made, answers(a.build, a.model, [s for s, _ in made], a.tokens)):
        n["answers"] += 1
        n["finished"] += is_finished
        n["bounded"] += is_bounded(schema)
        n["bounded finished"] += is_bounded(schema) and is_finished
        if is_finished:
            if not validates(schema, text):
                wrong("an answer does not validate", text, schema)
            continue
        fits, _, rest = lines.ask({"schema": schema, "strict": True, "texts": [text]})["texts"][0]
        if rest is None or not validates(schema, text + rest):
            wrong(f"a cut answer is no beginning, {fits} bytes fit", text, schema)
    print(", ".join(f"{v} {k}" for k, v in n.items()))
    return failed > 0 or n["bounded finished"] < .95 * n["bounded"] - 1


if __name__ == "__main__":
    sys.exit(main())
