#!/usr/bin/env python3
"""Times masks and compilations of a set of grammars: random walks, a full mask before every token. Prints for each grammar the
compilation, and mean, 99th percentile and greatest time of its masks, first without a cache of masks, then with one that has
1024 masks and is empty at first. CPU time. Needs build/tests/grammar_lines.

    tools/bench_grammar.py PROGRAM VOCABULARY.gguf [--walks N] [--evict MIB] [--only NAME]
"""
import argparse
import json
import random
import subprocess
import sys

JSON_GBNF = r'''
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
'''
SUM_GBNF = r'''
root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
'''
LIST_GBNF = 'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"\n'


def tools(n, closed):
    """Definitions of n tools, as agents send them."""
    r = random.Random(n)
    verbs, nouns = ["read", "write", "list", "search", "create", "delete", "update", "run", "get", "send"], \
        ["file", "directory", "issue", "command", "page", "message", "branch", "event", "user", "query", "note", "job"]
    names = sorted({f"{v}_{n}" for v in verbs for n in nouns})
    r.shuffle(names)
    out = []
    for name in names[:n]:
        properties = {}
        for p in r.sample(["path", "content", "query", "limit", "recursive", "pattern", "timeout", "options", "tags", "mode", "url"],
                          r.randint(2, 6)):
            properties[p] = {"path": {"type": "string", "description": "A path."}, "content": {"type": "string"},
                             "query": {"type": "string", "minLength": 1}, "limit": {"type": "integer", "minimum": 1, "maximum": 500},
                             "recursive": {"type": "boolean"}, "pattern": {"type": "string"}, "timeout": {"type": "number"},
                             "options": {"type": "object", "properties": {"depth": {"type": "integer"}, "all": {"type": "boolean"}}},
                             "tags": {"type": "array", "items": {"type": "string"}}, "mode": {"enum": ["fast", "slow", "auto"]},
                             "url": {"type": "string", "format": "uri"}}[p]
        parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:2]}
        if closed:
            parameters["additionalProperties"] = False
        out.append({"name": name, "parameters": parameters})
    return out


def union(n, closed):
    return {"anyOf": [{"type": "object", "properties": {"name": {"const": t["name"]}, "arguments": t["parameters"]},
                       "required": ["name", "arguments"], **({"additionalProperties": False} if closed else {})}
                      for t in tools(n, closed)]}


def strings(**more):
    return {"type": "object", "properties": {n: {"type": "string", **more} for n in ("title", "summary", "body", "author")},
            "required": ["title", "summary", "body", "author"], "additionalProperties": False}


def patterned(*patterns):
    return {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": p} for i, p in enumerate(patterns)},
            "required": [f"p{i}" for i in range(len(patterns))], "additionalProperties": False}


def grammars():
    r = random.Random(7)
    word = lambda: "".join(r.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(r.randint(4, 30)))
    yield "JSON object", {"json": True}
    yield "50 tools, open", {"schema": union(50, False)}
    yield "50 tools, closed", {"schema": union(50, True)}
    yield "strings", {"schema": strings()}
    yield "strings of 200", {"schema": strings(minLength=3, maxLength=200)}
    yield "strings of 12", {"schema": strings(maxLength=12)}
    yield "patterns", {"schema": patterned("^[A-Z][a-z]+( [A-Z][a-z]+)*$", "^[a-z0-9-]{3,40}$", "^\\d{4}-\\d{2}-\\d{2}$", "^#[0-9a-f]{6}$")}
    yield "pattern .*x.{20}", {"schema": patterned("^.*x.{1,20}$")}
    yield "pattern [^<>]*", {"schema": patterned("^[^<>]*$", "\\S")}
    yield "pattern x@y.z", {"schema": patterned("^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$")}
    yield "pattern a/b/c", {"schema": patterned("^[^/]+(/[^/]+)*$")}
    yield "formats", {"schema": {"type": "object", "properties": {f: {"type": "string", "format": f} for f in
                                 ("date-time", "uuid", "email", "ipv4")}, "required": ["date-time", "uuid", "email", "ipv4"]}}
    yield "numbers, enums", {"schema": {"type": "array", "minItems": 20, "maxItems": 20, "items": {"anyOf": [
        {"type": "number", "minimum": -3, "maximum": 7.5}, {"type": "integer"}, {"enum": [word() for _ in range(60)]}]}}}
    yield "regex [a-z]+", {"regex": "[a-z]+"}
    yield "regex phone", {"regex": "\\(\\d{3}\\) \\d{3}-\\d{4}"}
    yield "regex word{1,8}", {"regex": "(\\w+ ){1,8}\\w+[.!?]"}
    yield "regex .{1,80}", {"regex": ".{1,80}"}
    yield "regex (.|\\n)*END", {"regex": "(.|\\n)*END"}
    yield "regex a@b", {"regex": "[a-z0-9_.]{1,20}@[a-z]{2,10}\\.(com|org|net)"}
    yield "GBNF JSON", {"gbnf": JSON_GBNF}
    yield "GBNF sums", {"gbnf": SUM_GBNF}
    yield "GBNF list", {"gbnf": LIST_GBNF}
    yield "3 choices", {"choices": ["yes", "no", "not sure"]}
    yield "500 choices", {"choices": [word() for _ in range(500)]}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("vocabulary")
    p.add_argument("--walks", type=int, default=20)
    p.add_argument("--evict", type=int, default=0, help="MiB read before each mask, so that it finds the CPU's caches cold")
    p.add_argument("--only", default="")
    a = p.parse_args()
    results = {}
    for cached in (0, 1024):
        program = subprocess.Popen([a.program, a.vocabulary, str(cached), str(a.evict)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True)
        for name, grammar in grammars():
            if a.only not in name:
                continue
            program.stdin.write(json.dumps({**grammar, "walks": a.walks, "seed": 1}) + "\n")
            program.stdin.flush()
            answer = json.loads(program.stdout.readline())
            if "error" in answer:
                sys.exit(f"{name}: {answer['error']}")
            times = sorted(answer["microseconds"])
            results.setdefault(name, [answer["milliseconds"], len(times)]).extend(
                [sum(times) / len(times), times[int(len(times) * .99)], times[-1]])
        program.stdin.close()
        program.wait()
    print(f"{'':18} {'compile':>8} {'':6}   {'no cache of masks, us':^22}   {'a cache, us':^22}")
    print(f"{'':18} {'ms':>8} {'masks':>6} " + f"  {'mean':>6} {'99%':>7} {'most':>7}" * 2)
    for name, (compiled, n, *times) in results.items():
        print(f"{name:18} {compiled:8.2f} {n:6} " + "".join(f"  {times[i]:6.1f} {times[i + 1]:7.0f} {times[i + 2]:7.0f}" for i in (0, 3)))


if __name__ == "__main__":
    main()
