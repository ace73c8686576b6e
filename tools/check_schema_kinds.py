#!/usr/bin/env python3
"""How many schemas of the kinds of JSONSchemaBench constrained output supports, strictly: schemas of our own, drawn from a seed, with the
keywords of each kind as often as the benchmark's schemas have them. A schema is supported if it compiles, fits all its valid documents and no
invalid one; both are told apart by Python's jsonschema. Documents are made for the schema, changed, and drawn from the grammar's masks. Fails if
a document is accepted wrongly or a valid one refused, or if less than --least of the schemas are supported. Needs jsonschema.

    tools/check_schema_kinds.py build/tests/grammar_lines VOCABULARY.gguf [--schemas 400] [--seed 1] [--least 0.9] [--unique] [--why]

The rates are those of the schemas in MaskBench (github.com/guidance-ai/jsonschemabench), which sets `uniqueItems` aside but in its JSON Schema
Store; with --unique the other kinds have it, too, as often as before that.
"""
import argparse
import collections
import json
import random
import re
import subprocess
import sys

from jsonschema import validators

# Per cent of a kind's schemas that have a keyword; properties and depth of an object. The columns follow KINDS.
KINDS = ["GlaiveAI", "GitHub trivial", "GitHub easy", "GitHub medium", "GitHub hard", "GitHub ultra", "Kubernetes", "Snowplow",
         "Washington Post", "JSON Schema Store"]
RATES = {
    "properties": [5, 2, 4, 12, 30, 60, 9, 10, 7, 25], "depth": [2, 1, 2, 3, 4, 4, 2, 2, 2, 3],
    "required": [99, 36, 73, 76, 87, 90, 80, 53, 59, 68], "closed": [0, 29, 45, 47, 66, 74, 10, 99, 50, 70],
    "array": [29, 15, 32, 55, 78, 95, 61, 33, 49, 87], "enum": [12, 22, 24, 44, 71, 79, 27, 26, 54, 69],
    "reference": [0, 9, 15, 26, 49, 80, 73, 1, 62, 69], "annotation": [0, 16, 22, 28, 31, 50, 54, 100, 40, 15],
    "pattern": [0, 12, 12, 29, 48, 45, 0, 13, 25, 35], "format": [9, 3, 9, 19, 36, 42, 21, 1, 0, 22],
    "one_of": [3, 16, 5, 12, 29, 40, 26, 6, 19, 38], "any_of": [0, 6, 4, 5, 29, 47, 0, 5, 21, 33],
    "bounds": [0, 5, 11, 16, 23, 37, 0, 35, 18, 20], "lengths": [0, 8, 11, 18, 17, 24, 0, 47, 18, 20],
    "counts": [0, 3, 7, 13, 26, 43, 0, 6, 18, 19], "pattern_properties": [0, 6, 3, 7, 23, 18, 0, 3, 26, 24],
    "map": [0, 2, 2, 5, 8, 30, 43, 2, 58, 41], "all_of": [0, 3, 2, 3, 6, 13, 0, 0, 23, 21], "negation": [0, 2, 0, 1, 3, 12, 0, 0, 18, 7],
    "min_properties": [0, 1, 1, 2, 3, 7, 0, 3, 0, 6], "dependencies": [1, 0, 1, 1, 3, 2, 0, 1, 22, 2], "const": [0, 1, 1, 1, 1, 1, 0, 0, 0, 14],
    "multiple": [0, 1, 1, 1, 1, 2, 0, 2, 0, 1], "condition": [0, 0, 0, 0, 1, 0, 0, 0, 0, 8], "names": [0, 0, 0, 0, 1, 1, 0, 0, 0, 4],
    "tuple": [0, 1, 1, 2, 11, 10, 0, 0, 0, 1], "nullable": [0, 4, 6, 12, 27, 45, 93, 51, 0, 28], "contains": [0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    "unique": [0, 0, 0, 0, 0, 0, 0, 0, 0, 24], "misspelled": [0, 1, 1, 1, 1, 1, 0, 0, 0, 0],
}
UNIQUE = [0, 1, 4, 9, 24, 26, 0, 0, 0, 24]
SHARES = (("uniqueItems of strings", 60), ("of objects", 27), ("of an enum", 13))

NAMES = """id name type kind title description version status created updated owner email url path tags labels items count size width height color
 language country city address phone price currency amount unit start end date time zone enabled visible default options settings config
 metadata spec template selector replicas image ports volumes env command args limits requests author license homepage repository keywords
 main scripts dependencies engines files source target parent children value key message code level score rank weight format encoding hash
 größe user_id $schema apiVersion namespace""".split()
WORDS = "alpha beta gamma delta small large fast slow on off auto none all json xml text red green blue north south draft final".split()
# Each with texts that match and texts that do not.
PATTERNS = [
    ("^[a-z]+$", "abc z", "A a1"), ("^[A-Za-z0-9_-]+$", "a-B_9 x", "é a/b"), ("^[a-zA-Z][a-zA-Z0-9]*$", "a1 Z", "1a _a"),
    ("^\\d{4}-\\d{2}-\\d{2}$", "2024-02-29 0000-00-00", "2024-2-1 x"), ("^v?\\d+\\.\\d+\\.\\d+$", "1.2.3 v0.10.1", "1.2 a"),
    ("^#[0-9a-fA-F]{6}$", "#00ff7A", "00ff7a #12345"), ("^[0-9a-f]{40}$", "0123456789abcdef0123456789abcdef01234567", "0123"),
    ("^https?://", "http://a.b https://x", "ftp://a"), ("\\.json$", "a.json .json", "a.jsonx"), ("^(GET|POST|PUT)$", "GET PUT", "get PATCH"),
    ("^([01]\\d|2[0-3]):[0-5]\\d$", "09:30 23:59", "24:00 9:30"), ("^[A-Z]{2}(-[A-Z]{2,3})?$", "DE EN-US", "de E"),
    ("^\\+?[0-9 ()-]{5,20}$", "+49-30-1234 12345", "12 abc"), ("^(?!.*\\.\\.)[a-z0-9.]{1,20}$", "a.b x", "a..b A"),
    ("^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{4,12}$", "Abc1 XY99z", "abc1 Abcd"), ("^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", "a a-b9", "-a a-"),
    ("^(\\*|\\d+(-\\d+)?)(,\\d+)*$", "* 1-5 1,2", "a ,"), ("^[^/#]+/[^/#]+#[0-9]+$", "a/b#1", "a#1 a/b"), ("^.+$", "x é", ""),
    ("^arn:aws:[a-z0-9]+:[a-z0-9-]*:\\d{12}:.+$", "arn:aws:s3::123456789012:x", "arn:aws"), ("^$|^[a-f]{2,8}$", "ab cafe", "a xyz"),
    ("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$", "YWJj YQ==", "YQ= !"), ("\\bfoo\\b", "foo-bar a.foo", "foobar xfoo"),
    ("^\\S+@\\S+\\.\\S+$", "a@b.c x.y@z.org", "a@b a.b"), ("[^\\s]", "a x", ""), ("^(a|b(?!c))+d?$", "abd bb", "bc c"),
]
TOO_LARGE = ("^(?:\\S+\\s+){0,99}\\S+$", "one two", "")
FORMATS = {"date-time": "2024-05-06T07:08:09Z", "date": "2024-02-29", "time": "10:20:30Z", "email": "a.b@example.org", "uri": "https://a.b/c?d=e",
           "uuid": "01234567-89ab-cdef-0123-456789abcdef", "hostname": "a-b.example.org", "ipv4": "192.168.0.1", "ipv6": "fe80::1",
           "uri-reference": "/a/b#c", "int32": None, "path": "/usr/lib", "url": "a b", "color": "blue", "byte": "AA=="}
ANNOTATIONS = ["x-order", "displayName", "markdownDescription", "propertyOrder", "_format", "ui:widget", "readonly", "tsType", "links"]


class Maker:
    """Schemas of a kind, each with a function that makes documents for it. Properties come in the order of the schema."""

    def __init__(self, kind, seed, with_unique):
        self.r = random.Random(f"{KINDS[kind]} {seed}")
        self.rate = {name: (UNIQUE if name == "unique" and with_unique else row)[kind] for name, row in RATES.items()}
        self.definitions, self.open, self.left = {}, set(), {}
        # A schema has a keyword or not; if it has, about once to three times.
        for name in self.rate:
            if name not in ("properties", "depth", "required", "closed", "nullable"):
                self.left[name] = self.r.choice([1, 1, 2, 3]) if self.r.random() * 100 < self.rate[name] else 0
        self.draft = "http://json-schema.org/draft-07/schema#"

    def takes(self, name, chance=.5):
        """Whether a keyword is used here, of those that the schema has."""
        if not self.left[name] or self.r.random() > chance:
            return False
        self.left[name] -= 1
        return True

    # ---- Scalars ----

    def string(self):
        r = self.r
        if self.takes("pattern"):
            pattern, fits, _ = r.choice(PATTERNS) if r.random() < .97 else TOO_LARGE
            fits = fits.split(" ") if pattern != TOO_LARGE[0] else [fits]
            return {"type": "string", "pattern": pattern}, lambda: r.choice(fits)
        if self.takes("format"):
            name = r.choice(list(FORMATS))
            if FORMATS[name]:
                return {"type": "string", "format": name}, lambda: FORMATS[name]
            return {"type": "integer", "format": name}, lambda: r.randint(-9, 99)
        if self.takes("lengths"):
            low, high = r.choice([(1, 255), (0, 64), (3, 10), (1, 5000), (2, 2)])
            return {"type": "string", "minLength": low, "maxLength": high}, lambda: ("x é\"" * 8)[:r.randint(low, min(high, low + 9))]
        return {"type": "string"}, lambda: r.choice(["", "text", "größe \"x\"", "a\\b\n", "😀", "1"])

    def number(self):
        r, kind = self.r, self.r.choice(["integer", "number"])
        if self.takes("multiple", 1):
            step = r.choice([1, 2, 5, 10, 16, 0.01])
            return {"type": "number", "multipleOf": step}, lambda: step * r.choice([0, 1, 3]) if step >= 1 else 1
        if self.takes("bounds"):
            low = r.choice([0, 1, -90, 1024])
            high = low + r.choice([1, 10, 65535])
            schema = {"type": kind, "minimum": low, **({"maximum": high} if r.random() < .6 else {})}
            return schema, lambda: r.randint(low, high)
        return {"type": kind}, lambda: r.choice([0, 7, -3, 123456] + ([0.5, 1e-7, -2.25] if kind == "number" else []))

    def enum(self):
        r = self.r
        many = r.random() < .04
        values = [f"{w}-{i}" for i in range(200) for w in WORDS[:6]] if many else r.sample(WORDS, r.randint(2, 12))
        if not many and r.random() < .15:
            values += [1, None, 2.5, True]
        return {"enum": values, **({"type": "string"} if all(isinstance(v, str) for v in values) and r.random() < .7 else {})}, lambda: r.choice(values)

    def scalar(self):
        r = self.r
        if self.takes("enum"):
            return self.enum()
        if self.takes("const", .8):
            value = r.choice(["v1", 3, True, None])
            return {"const": value}, lambda: value
        schema, make = r.choice([self.string, self.string, self.string, self.number, self.number, lambda: ({"type": "boolean"}, lambda: r.random() < .5)])()
        if isinstance(schema.get("type"), str) and self.rate["nullable"] > 100 * r.random() and r.random() < .2:
            return {**schema, "type": [schema["type"], "null"]}, lambda: r.choice([make, lambda: None])()
        return schema, make

    # ---- Arrays and objects ----

    def array(self, depth):
        r = self.r
        if self.takes("unique", .8):
            share = r.random() * 100
            if share < SHARES[2][1]:
                values = r.sample(WORDS, 6) + r.choice([[], [1, 10, None]])
                return {"type": "array", "items": {"enum": values}, "uniqueItems": True}, lambda: r.sample(values, r.randint(0, 4))
            if share < SHARES[2][1] + SHARES[1][1]:
                item, make = self.object(depth + 1)
                return {"type": "array", "items": item, "uniqueItems": True}, lambda: [make()]
            return {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, lambda: r.sample(WORDS, 2)
        if self.takes("tuple"):
            parts = [self.scalar() for _ in range(r.randint(1, 3))]
            schema = {"type": "array", "items": [p[0] for p in parts], "additionalItems": False}
            return schema, lambda: [p[1]() for p in parts[:r.randint(0, len(parts))]]
        item, make = self.value(depth + 1)
        low, high = 0, 3
        schema = {"type": "array", "items": item}
        if self.takes("counts", .8):
            low, high = r.choice([(1, 3), (2, 2), (0, 4)])
            schema |= {"minItems": low, **({"maxItems": high} if r.random() < .7 else {})}
        if self.takes("contains", 1):
            schema["contains"] = {"type": "string"}
        return schema, lambda: [make() for _ in range(r.randint(low, high))]

    def object(self, depth, n=None):
        r = self.r
        n = n or r.randint(1, max(1, self.rate["properties"] // (1 + 2 * depth)))
        names = r.sample(NAMES, min(n, len(NAMES)))
        parts = {name: self.value(depth + 1) for name in names}
        required = [n for n in names if r.random() < .4] if r.random() * 100 < self.rate["required"] else []
        schema = {"type": "object", "properties": {n: s for n, (s, _) in parts.items()}}
        if required:
            schema["required"] = r.sample(required, len(required))
        is_closed = r.random() * 100 < self.rate["closed"]
        if is_closed:
            schema["additionalProperties"] = False

        def make(without=(), force=()):
            chosen = [n for n in names if n in required or n in force or (n not in without and r.random() < .5)]
            value = {n: parts[n][1]() for n in chosen}
            if not is_closed and r.random() < .2:
                value["zz-more"] = r.choice([1, None, ["x"], {}])
            return value
        return self.dependent(schema, names, required, parts, make)

    def dependent(self, schema, names, required, parts, make):
        """Adds keywords that join several properties."""
        r, free = self.r, [n for n in names if n not in required]
        if len(free) > 1 and self.takes("dependencies", .7):
            a, b = r.sample(free, 2)
            schema["dependencies"] = {a: [b]}
            return schema, lambda: r.choice([lambda: make(without=[a]), lambda: make(force=[a, b])])()
        if len(free) > 1 and self.takes("negation", .7):
            a, b = r.sample(free, 2)
            schema["not"] = r.choice([{"required": [a]}, {"required": [a, b]}, {"properties": {a: {"type": "string"}}, "required": [a]}])
            return schema, lambda: make(without=[a])
        if len(names) > 1 and self.takes("condition", .9):
            a, b = names[0], names[-1]
            schema["properties"][a] = {"type": "string", "enum": ["one", "two", "three"]}
            parts[a] = schema["properties"][a], lambda: r.choice(["two", "three"])
            schema["required"] = required = list(dict.fromkeys(schema.get("required", []) + [a]))
            schema |= {"if": {"properties": {a: {"const": "one"}}}, "then": {"required": [b]}}
            if r.random() < .4 and b not in required:
                schema["else"] = {"properties": {b: False}}
                return schema, lambda: make(without=[b], force=[a])
            return schema, lambda: make(force=[a])
        if self.takes("min_properties", .8) and len(names) > 1:
            schema["minProperties"] = 1 if "additionalProperties" not in schema else 2
            return schema, lambda: make(force=names[:2])
        return schema, make

    def mapping(self, depth):
        r, (item, make) = self.r, self.value(depth + 1)
        return {"type": "object", "additionalProperties": item}, lambda: {w: make() for w in r.sample(WORDS, r.randint(0, 3))}

    def patterned(self, depth):
        r, (item, make), (other, make_other) = self.r, self.value(depth + 1), self.scalar()
        pattern, fits, misses = r.choice([("^[a-z]+$", WORDS, ["A1", "B2"]), ("^x-", ["x-a", "x-b"], ["y"]), ("^[0-9]{1,3}$", ["1", "42"], ["a"])])
        schema = {"type": "object", "patternProperties": {pattern: item}, "additionalProperties": r.choice([False, False, True, other])}
        if r.random() < .3:
            schema["patternProperties"]["^(?!x)[A-Z]"] = other
            schema["additionalProperties"] = False
            return schema, lambda: {**{n: make() for n in r.sample(fits, 1)}, **({"A1": make_other()} if r.random() < .5 else {})}
        return schema, lambda: {n: make() for n in r.sample(fits, r.randint(0, 2))}

    def named(self, depth):
        r, (item, make) = self.r, self.value(depth + 1)
        names = r.choice([{"pattern": "^[a-z]+$"}, {"enum": WORDS[:5]}, {"maxLength": 6}, {"pattern": "^[a-z]", "minLength": 2}])
        return {"type": "object", "propertyNames": names, "additionalProperties": item}, lambda: {w: make() for w in r.sample(WORDS[:3], r.randint(0, 2))}

    # ---- Combinations ----

    def one_of(self, depth):
        r, way = self.r, self.r.random()
        if way < .45:
            parts = [self.scalar_of(t) for t in r.sample(["string", "integer", "boolean", "null"], r.randint(2, 3))]
            if depth < self.rate["depth"]:
                parts.append(self.object(depth + 1))
            return {"oneOf": [p[0] for p in parts]}, lambda: r.choice(parts)[1]()
        if way < .75:
            parts = []
            for tag in r.sample(WORDS, r.randint(2, 4)):
                schema, make = self.object(depth + 1)
                schema["properties"] = {"kind": r.choice([{"const": tag}, {"enum": [tag]}]), **schema["properties"]}
                schema["required"] = ["kind"] + [n for n in schema.get("required", []) if n != "kind"]
                parts.append((schema, lambda make=make, tag=tag: {"kind": tag, **{k: v for k, v in make().items() if k != "kind"}}))
            return {"oneOf": [p[0] for p in parts]}, lambda: r.choice(parts)[1]()
        if way < .93:
            a, b = r.sample(NAMES, 2)
            schema = {"type": "object", "properties": {a: {"type": "string"}, b: {"type": "integer"}}, "oneOf": [{"required": [a]}, {"required": [b]}]}
            return schema, lambda: r.choice([{a: "x"}, {b: 1}])
        return {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "items": {"type": "integer"}}]}, lambda: r.choice([["a"], [1]])

    def scalar_of(self, name):
        r = self.r
        return {"type": name}, {"string": lambda: "s", "integer": lambda: r.randint(0, 9), "boolean": lambda: True, "null": lambda: None}[name]

    def any_of(self, depth):
        parts = [self.value(depth + 1) for _ in range(self.r.randint(2, 4))]
        return {"anyOf": [p[0] for p in parts]}, lambda: self.r.choice(parts)[1]()

    def all_of(self, depth):
        schema, make = self.object(depth)
        extra = {"required": schema.get("required", [])[:1]} if schema.get("required") else {"description": "more"}
        first, (more, make_more) = self.r.choice([{"type": "object"}, extra]), self.scalar()
        if "additionalProperties" in schema:
            return {**schema, "allOf": [first]}, make
        return {**schema, "allOf": [first, {"properties": {"zz-extra": more}}]}, lambda: {
            **{k: v for k, v in make().items() if k != "zz-more"}, **({"zz-extra": make_more()} if self.r.random() < .5 else {})}

    def reference(self, depth):
        done = [name for name in self.definitions if name not in self.open]
        if done and self.r.random() < .5:
            name = self.r.choice(done)
            return {"$ref": f"#/definitions/{name}"}, self.definitions[name][1]
        name = f"def{len(self.definitions)}"
        self.definitions[name] = {"type": "null"}, lambda: None
        self.open.add(name)
        self.definitions[name] = self.value(depth + 1)
        self.open.remove(name)
        return {"$ref": f"#/definitions/{name}"}, self.definitions[name][1]

    def annotate(self, schema):
        if "$ref" not in schema and self.takes("annotation", .6):
            schema[self.r.choice(ANNOTATIONS)] = self.r.choice(["text", ["a"], {"a": 1}])
        if "type" in schema and self.takes("misspelled", .3):
            schema["minlength"] = 2
        return schema

    def value(self, depth):
        for name, make in (("reference", self.reference), ("one_of", self.one_of), ("any_of", self.any_of), ("all_of", self.all_of),
                           ("pattern_properties", self.patterned), ("map", self.mapping), ("names", self.named), ("array", self.array)):
            if depth <= self.rate["depth"] + 1 and self.takes(name, .35):
                schema, made = make(depth)
                return self.annotate(schema), made
        schema, made = self.object(depth) if depth < self.rate["depth"] and self.r.random() < .25 else self.scalar()
        return self.annotate(schema), made

    def schema(self):
        if self.r.random() < .5 and self.rate["pattern_properties"] > 20 and self.takes("pattern_properties"):
            schema, make = self.patterned(0)
        else:
            schema, make = self.object(0, max(1, int(self.rate["properties"] * self.r.uniform(.5, 1.5))))
        schema = {"$schema": self.draft, **self.annotate(schema)}
        if self.definitions:
            schema["definitions"] = {name: d[0] for name, d in self.definitions.items()}
        return schema, make

    # ---- Changes ----

    def changed(self, value):
        """A copy with one place changed."""
        value, places = json.loads(json.dumps(value)), []

        def find(at):
            for key in at if isinstance(at, dict) else range(len(at)):
                places.append((at, key))
                if isinstance(at[key], (dict, list)):
                    find(at[key])
        find(value)
        r, extra = self.r, self.r.choice(["zz", "A-1", "kind", "x-", "id"])
        if not places or r.random() < .1:
            return {**value, extra: r.choice([None, "x", 5])} if isinstance(value, dict) else [value]
        at, key = r.choice(places)
        old, way = at[key], r.randrange(6)
        if way == 0 and isinstance(at, dict):
            del at[key]
        elif way == 1 and isinstance(old, str):
            at[key] = r.choice([old + r.choice("x \n!é"), old[:-1], old.upper(), ""])
        elif way == 2 and isinstance(old, list):
            at[key] = r.choice([old + old[:1], old + [7], old[1:], old * 3])
        elif way == 3 and isinstance(old, dict):
            at[key] = {**old, extra: r.choice([None, 1, "x"])}
        elif isinstance(old, (int, float)) and not isinstance(old, bool) and way < 5:
            at[key] = r.choice([old + 1, -old, old * 1000 + 1, old + .5, str(old)])
        else:
            at[key] = r.choice([None, True, 12, -1, 1.5, "none", "", [], ["a"], {}, {"a": 1}])
        return value


class Lines:
    def __init__(self, *command):
        self.program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line):
        self.program.stdin.write(json.dumps(line) + "\n")
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())


def check(lines, maker, schema, make, seed):
    """What is wrong with a schema, or None; and how many documents were compared."""
    kind = validators.validator_for(schema)
    kind.check_schema(schema)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    made = [v for v in (make() for _ in range(8)) if validator.is_valid(v)]
    valid = [json.dumps(v, ensure_ascii=i % 2 > 0) for i, v in enumerate(made[:5])]
    changed = [maker.changed(v) for v in made for _ in range(4)]
    invalid = [json.dumps(v) for v in changed if not validator.is_valid(v)]
    answer = lines.ask({"schema": schema, "strict": True, "texts": valid + invalid, "walks": 3, "seed": seed})
    if "error" in answer:
        return "refused", answer["error"], len(valid), len(invalid), 0
    fits = [end for _, end, _ in answer["texts"]]
    for text, does_fit in zip(valid + invalid, fits):
        if does_fit != (text in valid):
            return "accepted wrongly" if does_fit else "valid, but refused", text, len(valid), len(invalid), 0
    ended = [text for text, is_finished in answer["walks"] if is_finished]
    for text in ended:
        if not validator.is_valid(json.loads(text)):
            return "drawn wrongly", text, len(valid), len(invalid), len(ended)
    return None, "", len(valid), len(invalid), len(ended)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("vocabulary")
    p.add_argument("--schemas", type=int, default=400)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--least", type=float, default=.9)
    p.add_argument("--unique", action="store_true")
    p.add_argument("--why", action="store_true")
    a = p.parse_args()
    lines = Lines(a.program, a.vocabulary)
    table, total, why, wrong = collections.defaultdict(collections.Counter), collections.Counter(), collections.Counter(), 0
    for i in range(a.schemas):
        kind = i % len(KINDS)
        maker = Maker(kind, a.seed * 100000 + i, a.unique)
        schema, make = maker.schema()
        problem, text, n_valid, n_invalid, n_drawn = check(lines, maker, schema, make, i)
        count = {"schemas": 1, "compiled": problem != "refused", "supported": problem is None, "valid": n_valid, "invalid": n_invalid, "drawn": n_drawn}
        table[KINDS[kind]].update(count)
        total.update(count)
        if problem == "refused":
            why[re.sub(r"#\S*|\d+|'[^']{20,}'", "*", text)[:90]] += 1
        elif problem:
            wrong += 1
            print(f"{problem}: {text}\n    {json.dumps(schema)}")
    for kind, n in [*table.items(), ("all", total)]:
        print(f"{kind:18} {n['schemas']:4} schemas, {n['compiled']:4} compile, {n['supported']:4} supported ({100 * n['supported'] / n['schemas']:5.1f}%), "
              f"{n['valid']:5} valid, {n['invalid']:5} invalid and {n['drawn']:4} drawn documents")
    for text, n in why.most_common(20 if a.why else 0):
        print(f"{n:5}  {text}")
    return wrong > 0 or total["supported"] < a.least * total["schemas"]


if __name__ == "__main__":
    sys.exit(main())
