#!/usr/bin/env python3
"""Compares constrained output with Python's jsonschema and re: random schemas, documents made for them and mutations of these,
and random walks by the masks of a vocabulary. A document that validates must fit, one that fits must validate, and what a walk
wrote must validate if it ended, and have the style's white space. Styles of white space and order take turns. Needs jsonschema and build/tests/grammar_lines.

    tools/check_grammar.py PROGRAM VOCABULARY.gguf [--schemas N] [--regexes N] [--seed N]
"""
import argparse
import json
import random
import re
import string
import subprocess
import sys

import jsonschema

CHARACTERS = "ab zéß€😀\"\\/\n\t\x01-_0"
PATTERNS = ["^[a-z]{1,5}$", "^\\d+-\\d+$", "a|b", "^(foo|ba+r)?$", "[^x]", "^.{2,4}$", "z$", "^\\S+ \\S+$", "^[\\w.]+@\\w+$", "^é*$"]
EXAMPLES = {"^[a-z]{1,5}$": ["ab", "z"], "^\\d+-\\d+$": ["1-22"], "a|b": ["xa", "b\n"], "^(foo|ba+r)?$": ["", "foo", "baaar"],
            "[^x]": ["xy", "\""], "^.{2,4}$": ["ab\\", "😀😀", "\"\"\""], "z$": ["z", "\nz"], "^\\S+ \\S+$": ["a b"],
            "^[\\w.]+@\\w+$": ["a.b@c"], "^é*$": ["", "éé"]}

# Of qn_json_space.
STYLES = [{}, {"indent": 2}, {"separators": (",", ":")}]
ANY = 3

CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
FORMATS = {"date": ["2024-02-29", "0001-01-01"], "time": ["10:20:30Z"], "date-time": ["2023-02-28T10:20:30.5+01:00"], "uuid": [
    "01234567-89ab-cdef-0123-456789abcdef"], "ipv4": ["192.168.0.1"], "ipv6": ["::1", "fe80::1:2"], "hostname": ["a-b.example.org"],
    "uri": ["https://a.b/c?d=e#f", "mailto:a@b.org"], "duration": ["P1DT2H", "P3W"], "json-pointer": ["/a/~0", ""], "email": ["a.b@example.org"]}


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)
        self.space, self.any_order = seed % 4, seed // 4 % 2

    def text(self, low=0, high=8):
        return "".join(self.r.choice(CHARACTERS) for _ in range(self.r.randint(low, high)))

    def any_value(self, depth=0):
        kind = self.r.randrange(7 if depth < 2 else 5)
        if kind == 0:
            return None
        if kind == 1:
            return self.r.random() < .5
        if kind == 2:
            return self.r.choice([0, -1, 7, 123456789])
        if kind == 3:
            return self.r.choice([0.5, -2.25, 1e30, 1.5e-7])
        if kind == 4:
            return self.text()
        if kind == 5:
            return [self.any_value(depth + 1) for _ in range(self.r.randrange(3))]
        return {self.text(1, 3): self.any_value(depth + 1) for _ in range(self.r.randrange(3))}

    # Each returns (schema, function that makes a valid value).
    def schema(self, depth=0):
        r = self.r
        kinds = [self.string, self.integer, self.number, self.boolean, self.null, self.enum, self.const, self.pattern, self.filtered, self.form]
        if depth < 3:
            kinds += [self.object] * 4 + [self.array] * 2 + [self.any_of, self.types, self.all_of, self.one_of]
        if depth == 0:
            kinds = [self.object] * 3 + [self.array, self.any_of, self.recursive]
        return r.choice(kinds)(depth)

    def string(self, depth):
        low, high = sorted((self.r.randrange(6), self.r.randrange(20)))
        schema = {"type": "string"}
        if self.r.random() < .5:
            schema["minLength"] = low
        if self.r.random() < .7:
            schema["maxLength"] = high
        return schema, lambda: self.text(low, high)

    def pattern(self, depth):
        p = self.r.choice(PATTERNS)
        schema = {"type": "string", "pattern": p}
        if self.r.random() < .3:
            schema["minLength"] = min(len(e) for e in EXAMPLES[p])
        if self.r.random() < .3:
            schema["maxLength"] = max(len(e) for e in EXAMPLES[p]) + self.r.randrange(3)
        return schema, lambda: self.r.choice(EXAMPLES[p])

    def integer(self, depth):
        schema = {"type": "integer"}
        low, high = sorted((self.r.randint(-1200, 1200), self.r.randint(-1200, 1200) * self.r.choice([1, 1000])))
        if self.r.random() < .7:
            schema["minimum" if self.r.random() < .7 else "exclusiveMinimum"] = low
        if self.r.random() < .7:
            schema["maximum" if self.r.random() < .7 else "exclusiveMaximum"] = high + 2
        return schema, lambda: self.r.choice([low + 1, high + 1, self.r.randint(low + 1, high + 1)])

    def number(self, depth):
        schema = {"type": "number"}
        scale = self.r.choice([1, 1, 1e-3, 1e-7, 1e10, 1e19])
        low, high = sorted((round(self.r.uniform(-20, 20), self.r.randrange(4)) * scale, round(self.r.uniform(-20, 20), self.r.randrange(4)) * scale))
        low = self.r.choice([low, low, 0]) if high > 0 else low
        if self.r.random() < .7:
            schema["minimum" if self.r.random() < .7 else "exclusiveMinimum"] = low
        if self.r.random() < .7:
            schema["maximum" if self.r.random() < .7 else "exclusiveMaximum"] = high + scale / 2
        return schema, lambda: self.r.choice([high + scale / 4, round(self.r.uniform(low + .001 * scale, high + .4 * scale), self.r.randrange(3, 12)),
                                              low + scale * 1e-5, -0.0 if low < 0 < high else high + scale / 4, self.r.uniform(low, high)])

    def filtered(self, depth):
        values = [self.any_value(1) for _ in range(self.r.randint(3, 6))]
        schema = {"enum": values + ["abc", 7], **self.r.choice([{"minimum": 0}, {"minLength": 2, "pattern": "a|b"}, {"minItems": 1}, {"maximum": 7.0},
                                                                {"type": ["string", "integer"]}])}
        return schema, lambda: self.r.choice(schema["enum"])

    def one_of(self, depth):
        parts = [self.string(depth), self.r.choice([self.integer, self.number])(depth), self.null(depth)]
        if self.r.random() < .5:
            tag = self.r.choice(["kind", "é"])
            parts = [({"type": "object", "properties": {tag: {"const": i}, "v": self.schema(depth + 2)[0]}, "required": [tag]}, lambda i=i: {tag: i})
                     for i in range(self.r.randint(1, 4))]
        return {"oneOf": [p[0] for p in parts]}, lambda: self.r.choice(parts)[1]()

    def form(self, depth):
        f = self.r.choice(list(FORMATS))
        return {"type": "string", "format": f}, lambda: self.r.choice(FORMATS[f])

    def boolean(self, depth):
        return {"type": "boolean"}, lambda: self.r.random() < .5

    def null(self, depth):
        return {"type": "null"}, lambda: None

    def enum(self, depth):
        values = [self.any_value(1) for _ in range(self.r.randint(1, 5))]
        return {"enum": values}, lambda: self.r.choice(values)

    def const(self, depth):
        value = self.any_value(1)
        return {"const": value}, lambda: value

    def types(self, depth):
        a, b = self.string(depth), self.integer(depth)
        return {**a[0], **b[0], "type": ["string", "integer", "null"]}, lambda: self.r.choice([a[1], b[1], lambda: None])()

    def any_of(self, depth):
        parts = [self.schema(depth + 1) for _ in range(self.r.randint(1, 3))]
        return {"anyOf": [p[0] for p in parts]}, lambda: self.r.choice(parts)[1]()

    def all_of(self, depth):
        a, b = self.schema(depth + 2), {"description": "x"}
        return {"allOf": [a[0], b]}, a[1]

    def array(self, depth):
        prefix = [self.schema(depth + 1) for _ in range(self.r.choice([0, 0, 0, 1, 2]))]
        item = self.schema(depth + 1)
        low = self.r.randint(0, 3)
        high = low + self.r.randint(0, 3)
        schema = {"type": "array", "items": item[0]}
        if prefix:
            schema["prefixItems"] = [p[0] for p in prefix]
        if self.r.random() < .6:
            schema["minItems"] = low
        if self.r.random() < .6:
            schema["maxItems"] = high
        return schema, lambda: [prefix[i][1]() if i < len(prefix) else item[1]() for i in range(self.r.randint(low, high))]

    def object(self, depth):
        names = list(dict.fromkeys(self.r.choice(["a", "ab", "b", "é", "a\"b", "x\ny", "", "key😀", "c", "d", "/"])
                                   for _ in range(self.r.randrange(6))))
        parts = {n: self.schema(depth + 1) for n in names}
        required = [n for n in names if self.r.random() < .5]
        schema = {"type": "object", "properties": {n: p[0] for n, p in parts.items()}}
        if required:
            schema["required"] = required
        extra = self.schema(depth + 2) if self.r.random() < .3 else None
        if extra:
            schema["additionalProperties"] = extra[0]
        elif self.r.random() < .6:
            schema["additionalProperties"] = False
        if self.r.random() < .1:
            schema["minProperties"] = len(required)
        if self.r.random() < .1:
            schema["maxProperties"] = len(names) + 1

        def make():
            chosen = [n for n in names if n in required or self.r.random() < .5]
            if self.any_order:
                self.r.shuffle(chosen)
            value = {n: parts[n][1]() for n in chosen}
            if schema.get("additionalProperties", True) is not False and self.r.random() < .4:
                key = "q" + self.text(0, 3)
                value[key] = extra[1]() if extra else self.any_value()
            return value
        return schema, make

    def recursive(self, depth):
        inner = self.schema(1)
        schema = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
            "value": inner[0], "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            "list": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value"], "additionalProperties": False}}}

        def make(level=0):
            value = {"value": inner[1]()}
            if level < 4 and self.r.random() < .6:
                value["next"] = self.r.choice([None, make(level + 1)])
            if level < 4 and self.r.random() < .3:
                value["list"] = [make(level + 2) for _ in range(self.r.randrange(3))]
            return value
        return schema, make

    def spell(self, value):
        form = self.space if self.space < ANY else self.r.randrange(ANY)
        return json.dumps(value, ensure_ascii=self.r.random() < .5, **STYLES[form])

    def mutate(self, text):
        at = self.r.randrange(len(text))
        kind = self.r.randrange(4)
        if kind == 0:
            return text[:at] + text[at + 1:]
        if kind == 1:
            return text[:at] + self.r.choice("\"{}[],:01aé\\ -.") + text[at:]
        if kind == 2:
            return text[:at] + self.r.choice("\"{}[],:09aeé\\ ") + text[at + 1:]
        to = self.r.randrange(len(text))
        return text[:min(at, to)] + text[max(at, to):]


def has_style(text, space):
    """Whether the white space of a document is that of json.dumps. Scalars are replaced: they have several spellings."""
    n = iter(range(1 << 30))
    text = re.sub(r'"(?:[^"\\]|\\.)*"', lambda _: f'"{next(n)}"', text)
    text = re.sub(r'(?<!["\w.+-])-?[0-9][0-9.eE+-]*(?!["\w])', "0", text)
    return space == ANY or json.dumps(json.loads(text), **STYLES[space]) == text


def unique_keys(pairs):
    if len({k for k, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def refuse(word):
    raise ValueError(word)


def validates(schema, text):
    try:
        value = json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    try:
        return jsonschema.Draft202012Validator(schema, format_checker=CHECKER).is_valid(value)
    except RecursionError:
        return True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("vocabulary")
    p.add_argument("--schemas", type=int, default=500)
    p.add_argument("--regexes", type=int, default=300)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    program = subprocess.Popen([a.program, a.vocabulary, "256"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(line):
        program.stdin.write(json.dumps(line) + "\n")
        program.stdin.flush()
        answer = program.stdout.readline()
        if not answer:
            sys.exit(f"the program ended at {json.dumps(line)}")
        return json.loads(answer)

    n = dict(documents=0, refused=0, mutations=0, wrong=0, walks=0, ended=0, invalid=0, errors=0)
    slowest = 0
    for seed in range(a.seed, a.seed + a.schemas):
        make = Maker(seed)
        schema, value = make.schema()
        texts = [make.spell(value()) for _ in range(5)]
        texts = [t for t in texts if validates(schema, t)]
        mutations = [make.mutate(t) for t in texts for _ in range(4)]
        answer = ask({"schema": schema, "strict": True, "space": make.space, "order": make.any_order, "texts": texts + mutations,
                      "walks": 2, "seed": seed})
        slowest = max(slowest, answer["milliseconds"])
        if "error" in answer:
            n["errors"] += 1
            print("error", answer["error"], json.dumps(schema))
            continue
        for text, (fits, ends, _) in zip(texts, answer["texts"]):
            n["documents"] += 1
            if not ends:
                n["refused"] += 1
                print(f"refused at byte {fits}: {text}\n    {json.dumps(schema)}")
        for text, (_, ends, _) in zip(mutations, answer["texts"][len(texts):]):
            n["mutations"] += 1
            if ends and not validates(schema, text):
                n["wrong"] += 1
                print(f"fits, but does not validate: {text}\n    {json.dumps(schema)}")
        for text, ended in answer["walks"]:
            n["walks"] += 1
            if ended:
                n["ended"] += 1
                if text is None or not validates(schema, text) or not has_style(text, make.space):
                    n["invalid"] += 1
                    print(f"a walk wrote what does not validate: {text}\n    {json.dumps(schema)}")
    r = random.Random(a.seed)
    n["regexes"] = n["regex texts"] = n["regex errors"] = 0
    for _ in range(a.regexes):
        def part(level):
            kind = r.randrange(9 if level < 3 else 5)
            if kind < 5:
                return r.choice(["a", "b", "[ab]", "[^a]", ".", "é", "\\d", "\\w", "[a-c1-2]", "\\."])
            if kind == 5:
                return "(?:" + "|".join(part(level + 1) for _ in range(r.randint(1, 3))) + ")"
            return "".join(part(level + 1) for _ in range(r.randint(1, 3))) if kind == 6 else \
                "(?:" + part(level + 1) + ")" + r.choice(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?"])
        regex = part(0)
        texts = ["".join(r.choice("abcé1.") for _ in range(r.randrange(7))) for _ in range(40)]
        answer = ask({"regex": regex, "texts": texts})
        if "error" in answer:
            n["regex errors"] += 1
            print("error", answer["error"], regex)
            continue
        n["regexes"] += 1
        compiled = re.compile(regex, re.ASCII)
        for text, (_, ends, _) in zip(texts, answer["texts"]):
            n["regex texts"] += 1
            if ends != bool(compiled.fullmatch(text)):
                n["wrong"] += 1
                print(f"regex {regex} and text {text!r}: fits {ends}")
    program.stdin.close()
    if program.wait():
        sys.exit("the program failed")
    print(", ".join(f"{v} {k}" for k, v in n.items()) + f"; slowest compilation {slowest:.2f} ms")
    return bool(n["refused"] or n["wrong"] or n["invalid"] or n["errors"])


if __name__ == "__main__":
    sys.exit(main())
