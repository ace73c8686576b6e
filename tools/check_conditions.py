#!/usr/bin/env python3
"""Random nested conditions of schemas, as a stranger might write them, against Python's jsonschema: no document that does not validate may fit
a strict schema. All documents of a small universe are tried with each. Needs jsonschema and build/tests/grammar_lines.

    tools/check_conditions.py PROGRAM [--schemas 1000] [--seed 1]
"""
import argparse
import collections
import itertools
import json
import random
import subprocess
import sys

from jsonschema import validators

SCALARS = [None, True, False, 0, 1, 2, 3, 5, -1, 1.5, "", "a", "ab", "b", "abc", "x1"]
TYPES = ["string", "integer", "number", "object", "array", "boolean", "null"]


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def documents(self):
        objects = [dict(zip(names, self.r.choices([1, 2, "a", "b", True, None], k=n)))
                   for n in range(4) for names in itertools.combinations("abc", n) for _ in range(6)]
        arrays = [[], [1], ["a"], [1, 1], ["a", "b"], ["a", "a"], [1, "a", None], [True, False], [1, 2, 3]]
        return SCALARS + objects + [{"a": {"a": 1}}, {"zz": 1}, {"a": 1, "zz": 2}, {"b": "a", "zz": "a"}] + arrays

    def leaf(self):
        r = self.r
        return r.choice([
            lambda: {"type": r.choice(TYPES)}, lambda: {"type": r.sample(TYPES, 2)}, lambda: {"enum": r.sample(SCALARS, 3)},
            lambda: {"const": r.choice(SCALARS)}, lambda: {r.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]): r.choice([0, 1, 2])},
            lambda: {"pattern": r.choice(["^a", "b$", "^(?!ab)", "x", "^$", "^[a-b]+$", "\\Bb"])},
            lambda: {r.choice(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"]): r.choice([0, 1, 2])},
            lambda: {"required": r.sample("abc", r.choice([1, 2]))}, lambda: {"multipleOf": 2}, lambda: {"format": "int32"}, lambda: True, lambda: {},
            lambda: {"uniqueItems": True, "items": {"enum": ["a", "b", 1, None]}}, lambda: {"$ref": "#/$defs/d"}])()

    def schema(self, depth):
        r, inner = self.r, lambda: self.schema(depth - 1)
        if depth <= 0 or r.random() < .25:
            return self.leaf()
        kind = r.randrange(13)
        if kind < 4:
            return [{"not": inner()}, {"oneOf": [inner() for _ in range(r.choice([2, 2, 3]))]}, {"anyOf": [inner(), inner()]},
                    {"allOf": [inner(), inner()]}][kind]
        if kind == 4:
            return {"if": inner(), "then": inner(), **({"else": inner()} if r.random() < .5 else {})}
        if kind == 5:
            return {"type": "object", "properties": {n: inner() for n in r.sample("abc", 2)},
                    **({"additionalProperties": r.choice([False, inner()])} if r.random() < .5 else {}),
                    **({"required": [r.choice("abc")]} if r.random() < .5 else {})}
        if kind == 6:
            return {"dependentRequired": {r.choice("abc"): [r.choice("abc")]}, "type": "object"}
        if kind == 7:
            return {"dependentSchemas": {r.choice("abc"): inner()}, "properties": {"a": inner()}}
        if kind == 8:
            return {"patternProperties": {r.choice(["^a", "[bc]", "z"]): inner()}, **({"additionalProperties": False} if r.random() < .4 else {})}
        if kind == 9:
            names = r.choice([{"pattern": "^[ab]"}, {"enum": ["a", "b"]}, {"maxLength": 1}, {"not": {"const": "a"}}])
            return {"propertyNames": names, "type": "object"}
        if kind == 10:
            return {"properties": {"a": inner()}, "not": inner()}
        if kind == 11:
            return {"type": "array", "items": inner()}
        parts = [p for p in (self.leaf(), inner()) if isinstance(p, dict)]
        return {k: v for p in parts for k, v in p.items()} | {"type": r.choice([["object", "string"], "object", "integer", "string"])}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--schemas", type=int, default=1000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    maker, n = Maker(a.seed), collections.Counter()
    program = subprocess.Popen([a.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    documents = maker.documents()
    texts = [json.dumps(d) for d in documents]
    for _ in range(a.schemas):
        schema = {"allOf": [maker.schema(3)], "$defs": {"d": maker.schema(1)}}
        program.stdin.write(json.dumps({"schema": schema, "strict": True, "order": 1, "texts": texts}) + "\n")
        program.stdin.flush()
        answer = json.loads(program.stdout.readline())
        n["schemas"] += 1
        n["refused"] += "error" in answer
        validator = validators.Draft202012Validator(schema)
        for document, text, (_, fits, _) in zip(documents, texts, answer.get("texts", [])):
            try:
                is_valid = validator.is_valid(document)
            except RecursionError:  # the schema refers to itself without end
                break
            n["documents"] += 1
            n["valid"] += is_valid
            n["fit"] += fits
            if fits and not is_valid:
                n["wrong"] += 1
                print(f"fits, but does not validate: {text}\n    {json.dumps(schema)}")
    print(", ".join(f"{v} {k}" for k, v in n.items()))
    return n["wrong"] > 0 or n["refused"] > a.schemas / 2 or not n["fit"]


if __name__ == "__main__":
    sys.exit(main())
