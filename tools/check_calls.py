#!/usr/bin/env python3
"""Compares the arguments of constrained tool calls with Python's jsonschema: tools whose schemas are put together in all the ways that
writers of tools use, in both forms, strict and not. Walks by the masks of a vocabulary are calls; what the parser makes of one that is
complete must validate, have no key twice, and have the keys in the schema's order where it has one. Needs jsonschema and
build/tests/grammar_lines.

    tools/check_calls.py PROGRAM VOCABULARY.gguf [--walks N] [--seed N] [--random N] [--only NAME] [--verbose]
"""
import argparse
import json
import random
import subprocess
import sys

import jsonschema

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
COLOR = {"enum": ["red", "green"], "title": "Color", "type": "string"}

# A parameter `v` of each: pydantic's, and others.
VALUES = {
    "string": STRING, "integer": INTEGER, "number": {"type": "number"}, "boolean": {"type": "boolean"}, "null": {"type": "null"},
    "array": {"type": "array", "items": INTEGER}, "object": {"type": "object", "properties": {"x": INTEGER}, "additionalProperties": False},
    "anything": {}, "true": True, "title": {"title": "V", "description": "x"},
    "enum": {"enum": ["red", "green"]}, "const": {"const": "red"}, "mixed enum": {"enum": ["a", 1, None, True, 2.5, [1], {"k": "v"}]},
    "enum of numbers as strings": {"enum": ["1", 2, "x"]}, "typed enum": {"type": "string", "enum": ["1", "true", "null"]},
    "nullable enum": {"type": ["string", "null"], "enum": ["a", "b", None]}, "null not in the enum": {"type": ["string", "null"], "enum": ["a", "b"]},
    "const true": {"const": True}, "const list": {"const": [1, "a"]}, "const number": {"const": 1.5},
    "pattern": {"type": "string", "pattern": "^[a-z]{2,4}$"}, "pattern in the middle": {"type": "string", "pattern": "[0-9]x"},
    "pattern and lengths": {"type": "string", "pattern": "^[ab]+$", "minLength": 2, "maxLength": 3},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 5}, "least length": {"type": "string", "minLength": 4},
    "long length": {"type": "string", "minLength": 1, "maxLength": 5000}, "empty": {"type": "string", "maxLength": 0},
    "format": {"type": "string", "format": "date"}, "bounds": {"type": "integer", "minimum": 5, "maximum": 17},
    "$ref": {"$ref": "#/$defs/Color"}, "$ref of $ref": {"$ref": "#/$defs/Alias"}, "$ref and description": {"$ref": "#/$defs/Color", "description": "x"},
    "$ref in allOf": {"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"}, "$ref to a union": {"$ref": "#/$defs/Union"},
    "$ref with siblings": {"$ref": "#/$defs/Word", "maxLength": 3}, "recursive": {"$ref": "#/$defs/Node"},
    "Optional[Literal]": {"anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}]},
    "Optional[Color]": {"anyOf": [{"$ref": "#/$defs/Color"}, {"type": "null"}], "default": None},
    "Optional[str]": {"anyOf": [STRING, {"type": "null"}]}, "str | int": {"anyOf": [STRING, INTEGER]}, "int | str": {"anyOf": [INTEGER, STRING]},
    "str | int with bounds": {"anyOf": [STRING, {"type": "integer", "minimum": 3, "maximum": 4}]},
    "bounded int | str": {"type": ["integer", "string"], "minimum": 3, "maximum": 4}, "str | list": {"anyOf": [STRING, {"type": "array", "items": STRING}]},
    "short str | null": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    "short str | bool": {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 5}, {"type": "boolean"}]},
    "pattern | int": {"anyOf": [{"type": "string", "pattern": "^[0-9a]+$"}, {"type": "integer", "maximum": 9}]},
    "Literal | int": {"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": 1}]}, "Literal | bool": {"anyOf": [{"enum": ["a", "true"]}, {"type": "boolean"}]},
    "str | object": {"anyOf": [STRING, {"type": "object", "properties": {"x": INTEGER}, "required": ["x"]}]},
    "oneOf": {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}]}, "oneOf of objects": {"oneOf": [
        {"type": "object", "properties": {"k": {"const": "a"}, "n": INTEGER}, "required": ["k"], "additionalProperties": False},
        {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"], "additionalProperties": False}]},
    "allOf": {"allOf": [{"type": "string"}, {"minLength": 2}, {"maxLength": 3}]}, "allOf of enums": {"allOf": [{"enum": ["a", "b", "c"]}, {"enum": ["b", "c", 1]}]},
    "allOf and anyOf": {"allOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"enum": ["x", None]}]}, "list of types": {"type": ["string", "integer", "null"]},
    "types and lengths": {"type": ["string", "null"], "minLength": 3}, "union in a union": {"anyOf": [{"anyOf": [{"const": "p"}, {"const": 7}]}, {"type": "null"}]},
    "if of a string": {"type": "string", "if": {"const": "a"}, "then": {"maxLength": 1}, "else": {"minLength": 3}},
    "implied type": {"minLength": 2}, "implied object": {"properties": {"x": INTEGER}, "required": ["x"]},
    "patterns, one at least": {"type": "object", "patternProperties": {"^k[0-9]$": INTEGER}, "additionalProperties": False, "minProperties": 1},
    "dict[str, int]": {"type": "object", "additionalProperties": INTEGER}, "dict[Color, int]": {"type": "object", "propertyNames": {"$ref": "#/$defs/Color"}, "additionalProperties": INTEGER},
    "record of names": {"type": "object", "propertyNames": {"type": "string", "enum": ["p", "q"]}, "additionalProperties": {"maxLength": 2}, "required": ["q"]},
    "record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER}, "list[Color]": {"type": "array", "items": {"$ref": "#/$defs/Color"}, "minItems": 1, "maxItems": 2},
}
DEFS = {"Color": COLOR, "Alias": {"$ref": "#/$defs/Color"}, "Union": {"anyOf": [{"const": "on"}, {"type": "integer", "maximum": 3}]},
        "Word": {"type": "string", "pattern": "^[a-z]*$"}, "Node": {"type": "object", "properties": {"next": {"anyOf": [
            {"$ref": "#/$defs/Node"}, {"type": "null"}]}, "n": INTEGER}, "required": ["n"], "additionalProperties": False}}


def branch(required=None, **properties):
    return {"properties": properties, "required": list(properties) if required is None else required}


# Whole arguments.
ROOTS = {
    "anyOf": {"type": "object", "anyOf": [branch(content=STRING), branch(source_url=STRING)]},
    "oneOf": {"type": "object", "oneOf": [{**branch(content=STRING), "additionalProperties": False}, {**branch(source_url=INTEGER), "additionalProperties": False}]},
    "oneOf with tags": {"oneOf": [{"type": "object", **branch(op={"const": "name"}, value=STRING)}, {"type": "object", **branch(op={"const": "count"}, value=INTEGER)}]},
    "$ref to a union": {"$ref": "#/$defs/U", "$defs": {"U": {"anyOf": [branch(content={"enum": ["x"]}), branch(source_url=STRING)]}}},
    "$ref": {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", **branch(color={"$ref": "#/$defs/C"}), "additionalProperties": False}, "C": COLOR}},
    "branches beside properties": {"type": "object", "properties": {"path": STRING, "mode": {"enum": ["r", "w"]}}, "required": ["path"], "anyOf": [
        branch(content=STRING), branch(source_url={"type": "integer"})]},
    "branches of required": {"type": "object", "properties": {"a": INTEGER, "b": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False},
    "branches that limit a property": {"type": "object", "properties": {"kind": STRING, "n": INTEGER}, "required": ["kind"], "anyOf": [
        {"properties": {"kind": {"const": "a"}}}, {"properties": {"kind": {"const": "b"}, "n": {"minimum": 3}}, "required": ["n"]}]},
    "if then else": {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "x": INTEGER, "y": STRING}, "required": ["kind"],
                     "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["x"]}, "else": {"required": ["y"]}},
    "if then": {"type": "object", "properties": {"kind": STRING, "x": INTEGER}, "required": ["kind"],
                "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]}, "then": {"properties": {"x": {"minimum": 9}}, "required": ["x"]}},
    "ifs in allOf": {"type": "object", "properties": {"kind": {"enum": ["a", "b", "c"]}}, "required": ["kind"], "allOf": [
        {"if": {"properties": {"kind": {"const": "a"}}}, "then": branch(x=INTEGER)}, {"if": {"properties": {"kind": {"const": "b"}}}, "then": branch(y=STRING)}]},
    "12 ifs": {"type": "object", "properties": {"kind": {"enum": [f"k{i}" for i in range(12)]}}, "required": ["kind"], "allOf": [
        {"if": {"properties": {"kind": {"const": f"k{i}"}}}, "then": branch(**{f"a{i}": INTEGER})} for i in range(12)]},
    "ifs of strings": {"type": "object", "properties": {"kind": STRING}, "required": ["kind"], "allOf": [
        {"if": {"properties": {"kind": {"const": f"k{i}"}}, "required": ["kind"]}, "then": branch(**{f"a{i}": INTEGER})} for i in range(6)]},
    "if of any value": {"properties": {"v": {"if": {"properties": {"x": {"const": 1}}, "required": ["x"]}, "then": {"required": ["y"]}, "else": {"type": "string"}}}, "required": ["v"]},
    "if of a type": {"properties": {"v": {"if": {"type": "string"}, "then": {"maxLength": 2}, "else": {"type": "integer", "minimum": 7}}}, "required": ["v"]},
    "if of a number": {"properties": {"n": INTEGER, "m": INTEGER}, "required": ["n"], "if": {"properties": {"n": {"minimum": 10}}}, "then": {"required": ["m"]}},
    "if without a type": {"properties": {"k": {"enum": ["a", "b"]}, "x": INTEGER}, "if": {"required": ["k"]}, "then": {"required": ["x"]}, "else": {"maxProperties": 0}},
    "not with lengths": {"properties": {"v": {"type": "string", "not": {"const": "ab"}, "minLength": 2, "maxLength": 50}}, "required": ["v"]},
    "not": {"properties": {"v": {"type": "string", "not": {"enum": ["a", "", "red"]}, "maxLength": 3}, "w": {"enum": ["a", "b"], "not": {"const": "a"}}}, "required": ["v", "w"]},
    "then with parameters": {"type": "object", "if": branch(flag={"const": True}), "then": branch(text={"type": "string", "maxLength": 3})},
    "additional true": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
    "additional schema": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"], "additionalProperties": {"type": "integer"}},
    "additional strings": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}}, "additional enum": {"type": "object", "additionalProperties": {"$ref": "#/$defs/C"}, "$defs": {"C": COLOR}},
    "additional union": {"type": "object", "additionalProperties": {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "null"}]}},
    "additional in allOf": {"allOf": [{"type": "object", "properties": {"a": STRING}}, {"additionalProperties": {"type": "string", "minLength": 2}}]},
    "required without schema": {"type": "object", "properties": {"a": INTEGER}, "required": ["a", "z"], "additionalProperties": {"type": "boolean"}},
    "object": {"type": "object"}, "empty": {}, "none": None, "no properties": {"type": "object", "properties": {}}, "counts": {"type": "object", "properties": {
        "a": INTEGER, "b": INTEGER, "c": INTEGER}, "minProperties": 2, "maxProperties": 2, "additionalProperties": False},
    "allOf": {"allOf": [branch(a=INTEGER), branch(b={"enum": ["x", "y"]})]}, "allOf of $ref": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {
        "A": branch(a=STRING), "B": branch(a={"maxLength": 2}, b=INTEGER)}}, "object or null": {"type": ["object", "null"], **branch(a=INTEGER)},
    "anyOf of everything": {"anyOf": [{"type": "null"}, {"type": "object", **branch(a=INTEGER)}, {"type": "string"}]}, "nested unions": {"anyOf": [{"anyOf": [branch(a=INTEGER), branch(b=STRING)]}, {
        "allOf": [branch(c={"type": "boolean"}), {"anyOf": [branch(d=STRING), branch(e=INTEGER)]}]}]}, "same name, other types": {"anyOf": [branch(v=INTEGER), branch(v={"type": "boolean"}), branch(v={"type": "string", "minLength": 3})]},
    "in one branch only": {"type": "object", "anyOf": [{**branch(a=INTEGER), "additionalProperties": True}, {**branch(b={"type": "boolean"}), "additionalProperties": True}]},
    "recursive": {"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"child": {"$ref": "#/$defs/N"}, "name": STRING}, "additionalProperties": False}}},
    "const": {"const": {"a": 1, "b": "x"}}, "enum": {"type": "object", "enum": [{"a": 1}, {"b": ["x", None]}, {}, "no object"]},
    "additional, one at least": {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}, "minProperties": 1},
    "patternProperties, one at least": {"type": "object", "patternProperties": {"^x-": INTEGER}, "additionalProperties": False, "minProperties": 1},
    "dict[Color, str]": {"type": "object", "propertyNames": {"$ref": "#/$defs/C"}, "additionalProperties": STRING, "minProperties": 1, "$defs": {"C": COLOR}},
    "names in allOf": {"allOf": [{"type": "object", "propertyNames": {"enum": ["a", "b"]}}, branch(a=INTEGER), {"properties": {"c": INTEGER}}]},
    "discriminator": {"oneOf": [branch(t={"const": "a"}, n=INTEGER), branch(t={"const": "b"})], "discriminator": {"propertyName": "t"}},
    "patternProperties": {"type": "object", "patternProperties": {"^x-": INTEGER, "y$": {"type": "string", "maxLength": 2}}, "additionalProperties": False},
    "patternProperties beside": {"type": "object", "properties": {"x-a": {}, "b": STRING}, "required": ["b"], "patternProperties": {"^x": {"type": "integer"}}},
    "patternProperties and others": {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}},
}


def cases():
    for name, value in VALUES.items():
        yield f"value: {name}", {"type": "object", "properties": {"before": STRING, "v": value}, "required": ["v"], "$defs": DEFS}
    for name, root in ROOTS.items():
        yield f"root: {name}", root


def draw(r):
    """A union of objects of some of the values, each of which another may have too."""
    names = [r.choice("abcd") for _ in range(r.randint(1, 3))]

    def some():
        properties = {n: r.choice(list(VALUES.values())) for n in dict.fromkeys(r.choice(names + ["e"]) for _ in range(r.randint(1, 3)))}
        return {"type": "object", "properties": properties, "required": [n for n in properties if r.random() < .6],
                **r.choice([{}, {}, {"additionalProperties": False}, {"additionalProperties": {"type": "integer"}}])}
    return {**(some() if r.random() < .4 else {}), r.choice(["anyOf", "allOf", "anyOf"]): [some() for _ in range(r.randint(1, 3))], "$defs": DEFS}


def unique_keys(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def wrong(schema, arguments, checks_formats):
    """What is wrong with the arguments of a call, or None. Where a value has a pattern and a format, only the pattern holds."""
    try:
        value = json.loads(arguments, object_pairs_hook=unique_keys)
    except ValueError as error:
        # Names that the schema does not have may repeat.
        if "a key twice" not in str(error) or "dditional" not in json.dumps(schema) and schema not in ({}, None, {"type": "object"}):
            return str(error)
        value = json.loads(arguments)
    if not isinstance(value, dict):
        return "no object"
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER if checks_formats else None
    for error in jsonschema.Draft202012Validator({} if schema is None else schema, format_checker=checker).iter_errors(value):
        return error.message
    properties = schema.get("properties") if schema and not set(schema) & {"anyOf", "oneOf", "allOf", "$ref", "if"} else None
    order = [key for key in value if key in (properties or ())]
    return None if not properties or order == [key for key in properties if key in value] else "another order"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("vocabulary")
    p.add_argument("--walks", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--random", type=int, default=60)
    p.add_argument("--only", default="")
    p.add_argument("--verbose", action="store_true")
    a = p.parse_args()
    program = subprocess.Popen([a.program, a.vocabulary, "256"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    r = random.Random(a.seed)
    n = dict(schemas=0, walks=0, ended=0, wrong=0, refused=0, never=0)
    all_cases = list(cases()) + [(f"drawn {i}", draw(r)) for i in range(a.random)]
    for name, schema in all_cases:
        if a.only not in name:
            continue
        refused = {}
        for form in ("xml", "json"):
            for strict in (False, True):
                function = {"name": "f", "strict": strict, **({} if schema is None else {"parameters": schema})}
                n["schemas"] += 1
                program.stdin.write(json.dumps({"tools": [{"type": "function", "function": function}], "form": form, "walks": a.walks,
                                                "seed": a.seed, "space": n["schemas"] % 3}) + "\n")
                program.stdin.flush()
                line = program.stdout.readline()
                if not line:
                    sys.exit(f"the program ended at {name}, {form}, strict {strict}: {json.dumps(schema)}")
                answer = json.loads(line)
                if "error" in answer:
                    n["refused"] += 1
                    may_be = strict or name.startswith("drawn")
                    n["wrong"] += not may_be
                    if not may_be or a.verbose:
                        print(f"{name}, {form}, strict {strict}: {answer['error']}")
                if form == "xml":
                    refused[strict] = "error" in answer
                elif refused[strict] != ("error" in answer):
                    # A string that only looks like a number cannot be written in XML where the value may be one in another schema.
                    n["wrong"] += not (refused[strict] and name.startswith("drawn"))
                    print(f"{name}, strict {strict}: refused in one form only: {answer.get('error')}\n    {json.dumps(schema)}")
                if "error" in answer:
                    continue
                done = 0
                for text, ended, calls in answer["walks"]:
                    n["walks"] += 1
                    n["ended"] += ended
                    if not ended:
                        continue
                    done += 1
                    what = f"{len(calls)} calls" if len(calls) != 1 or not calls[0][2] else wrong(schema, calls[0][1], not name.startswith("drawn"))
                    if a.verbose:
                        print(f"{name}, {form}: {calls}")
                    if what:
                        n["wrong"] += 1
                        print(f"{name}, {form}, strict {strict}: {what}\n    {text!r}\n    {calls}\n    {json.dumps(schema)}")
                if not done:
                    n["never"] += 1
                    print(f"{name}, {form}, strict {strict}: no walk ended")
    program.stdin.close()
    if program.wait():
        sys.exit("the program failed")
    print(", ".join(f"{v} {k}" for k, v in n.items()))
    return bool(n["wrong"] or n["never"] > n["schemas"] / 20)


if __name__ == "__main__":
    sys.exit(main())
