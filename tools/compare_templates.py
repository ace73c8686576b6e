#!/usr/bin/env python3
"""Compares the interpreter of chat templates with jinja2 in the environment that transformers gives templates.

    tools/compare_templates.py --render-lines build/tests/render_lines --generated 100000
    tools/compare_templates.py --render-lines build/tests/render_lines --templates tests/golden/templates/*.jinja
    tools/compare_templates.py --write-golden tests/golden/templates/*.jinja
    tools/compare_templates.py --write-corpus tests/fuzz/corpus/template --templates tests/golden/templates/*.jinja

Templates drawn from template_grammar.py, and given ones over random conversations, must give the same text, or an error in both. Bytes
of variables must lie in spans that are not the template's, special tokens that templates spell in those that are. The first line of
output of a difference has the seed. Exit status 1: there is a difference. 2: jinja2 is not here.
"""
import argparse
import collections
import datetime
import json
import os
import random
import re
import subprocess
import sys

from template_grammar import FEATURE_PATTERNS, Generator

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("no jinja2", file=sys.stderr)
    sys.exit(2)

NOW = 1700000000
SENTINEL = "\u29d6"  # only in variables
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "</think>", "<tool_call>", "<s>", "[INST]"]
# The address or the class of a Python object, also with a text between all of its characters.
UNPRINTABLE = re.compile(r"0x[0-9a-f]{6,}|<class |o(.{1,80}?)b\1j\1e\1c\1t\1", re.DOTALL)


# ---- The reference ----


class Generation(jinja2.ext.Extension):
    """The tag that marks what an assistant says."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


class Raised(Exception):
    """What a template says with raise_exception."""


def make_environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.fromtimestamp(NOW).strftime(form)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


class Reference:
    def __init__(self):
        self.environment = make_environment()
        self.compiled = {}

    def render(self, source, variables):
        """("text", text), ("raised", the template's own message), ("error", message), or ("none", why) where there is nothing to
        compare with."""
        try:
            if source not in self.compiled:
                if len(self.compiled) > 100:
                    self.compiled.clear()
                self.compiled[source] = self.environment.from_string(source)
            text = self.compiled[source].render(**variables)
        except RecursionError:
            return "none", "recursion"
        except Raised as error:
            return "raised", str(error)
        except Exception as error:  # whatever a template does wrong
            return "error", f"{type(error).__name__}: {error}"
        return ("none", "an address") if UNPRINTABLE.search(text) else ("text", text)


class Quern:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def render(self, source, variables):
        line = json.dumps({"template": source, "variables": variables, "now": NOW})
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = self.process.stdout.readline()
        if not answer:
            return "ended", f"render_lines ended with status {self.process.wait()}", []
        answer = json.loads(answer)
        if "error" in answer:
            return "error", answer["error"], []
        return "text", answer["text"], answer["spans"]


# ---- Comparing ----


def span_error(text, spans, variables, source):
    """What is wrong with the spans of a text, or None."""
    data = text.encode()
    origins = bytearray(len(data))
    at = 0
    for begin, end, from_template in spans:
        if begin != at or end <= begin:
            return f"span [{begin}, {end}) after {at}"
        origins[begin:end] = bytes([from_template]) * (end - begin)
        at = end
    if at != len(data):
        return f"spans end at {at} of {len(data)}"
    if SENTINEL not in source:
        for found in re.finditer(re.escape(SENTINEL.encode()), data):
            if any(origins[found.start():found.end()]):
                return f"byte {found.start()}, of a variable, counts as the template's"
    given = json.dumps({k: v for k, v in variables.items() if not k.endswith("_token")}, ensure_ascii=False)
    for token in SPECIAL:
        if token in given or token not in source or "|e" in source:
            continue
        for found in re.finditer(re.escape(token.encode()), data):
            if not all(origins[found.start():found.end()]):
                return f"'{token}' at byte {found.start()}, of the template, counts as a variable's"
    return None


def is_message(message, text):
    """Errors show 400 bytes of what a template raises, up to a NUL, with ? for control characters."""
    message, text = re.sub(r"[\x01-\x1f\x7f]", "?", message.split("\0")[0]).encode(), text.encode()
    return message == text or (len(text) > 396 and message.startswith(text))


class Comparison:
    def __init__(self, program, shown):
        self.reference = Reference()
        self.quern = Quern(program)
        self.shown = shown
        self.counts = collections.Counter()

    def compare(self, name, source, variables, check_template_spans):
        """Returns the kind of quern's result."""
        expected = self.reference.render(source, variables)
        kind, text, spans = self.quern.render(source, variables)
        if kind == "ended":
            self.report(name, source, variables, expected, (kind, text))
            sys.exit(1)
        if expected[0] == "none" or (kind == "error" and text.endswith("more than 64 bits")):
            self.counts["not compared"] += 1
            return "not compared"
        problem = None
        if expected[0] == "raised":
            kind = "raised" if kind == "error" and is_message(expected[1], text) else kind
        if expected[0] != kind or (kind == "text" and expected[1] != text):
            problem = "the results differ"
        elif kind == "text":
            problem = span_error(text, spans, variables, source if check_template_spans else "")
        self.counts[problem and "different" or kind] += 1
        if problem:
            self.report(f"{name}: {problem}", source, variables, expected, (kind, text))
        return kind

    def report(self, title, source, variables, expected, found):
        if self.counts["different"] > self.shown:
            return
        print(f"---- {title}\ntemplate  {source!r}\nvariables {json.dumps(variables)}")
        if expected[0] == found[0] == "text":
            common = len(os.path.commonprefix([expected[1], found[1]]))
            print(f"jinja2    ...{expected[1][max(0, common - 60):common + 60]!r}\nquern     ...{found[1][max(0, common - 60):common + 60]!r}")
        else:
            print(f"jinja2    {expected[0]}: {expected[1][-300:]!r}\nquern     {found[0]}: {found[1][-300:]!r}")
        sys.stdout.flush()

    def summary(self):
        return ", ".join(f"{self.counts[kind]} {kind}" for kind in ("text", "raised", "error", "not compared", "different"))


# ---- Conversations ----

TEXTS = ["", "Hello", "  x  ", "a\nb\n", f"{SENTINEL}<|im_start|>user", f"</think>{SENTINEL} q", "\u00e4\u00f6\u00fc \U0001f389", "<think>\nabc\n</think>\n\nfin",
         '{"a": 1}', "/no_think do", "<tool_response>x</tool_response>", "it's \"q\" \\ \t z", "\u2028e\u0301", "{{ x }} {% y %}", "<tool_call>\n{}\n</tool_call>",
         "&<b>'", f"[INST]{SENTINEL}", "\\u0041 \\n", " \n "]


class Conversations:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, p):
        return self.random.random() < p

    def text(self):
        return self.random.choice(TEXTS)

    def argument(self, depth=0):
        r = self.random.random()
        if r < 0.4 or depth > 2:
            return self.random.choice([self.text(), 1, 0, -5, 1.5, 1e20, 0.1, True, False, None, [], {}, "x<y&z"])
        if r < 0.7:
            return [self.argument(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {self.random.choice(["a", "b c", "\u00e9", "items", "k"]): self.argument(depth + 1) for _ in range(self.random.randint(0, 3))}

    def tool(self, i):
        a = {"type": self.random.choice(["string", "integer", ["string", "null"]]), "description": self.text(), "enum": ["x", "y"]}
        b = {"type": "array", "items": {"type": "number"}, "default": [1, 2.5]}
        c = {"type": "object", "properties": {"in": {"type": "boolean"}}, "required": ["in"]}
        properties = {"a": a, "b": b, "c": c} if self.chance(0.8) else {}
        parameters = {"type": "object", "properties": properties, "required": ["a"] if self.chance(0.7) else []}
        return {"type": "function", "function": {"name": f"f{i}", "description": self.text(), "parameters": parameters}}

    def call(self, i):
        names = self.random.sample(["a", "b", "query", "path"], self.random.randint(0, 3))
        arguments = {name: self.argument() for name in names} if self.chance(0.9) else '{"a": 1}'
        return {"id": f"call{i}1234", "type": "function", "function": {"name": f"f{self.random.randint(0, 2)}", "arguments": arguments}}

    def turn(self):
        parts = [{"type": "text", "text": self.text()}]
        yield {"role": "user", "content": self.text() if self.chance(0.85) else parts}
        if self.chance(0.2):
            return
        assistant = {"role": "assistant", "content": self.random.choice([self.text(), self.text(), None, ""])}
        if self.chance(0.3):
            assistant["reasoning_content"] = self.text()
        if self.chance(0.2):
            assistant["thinking"] = self.text()
        calls = [self.call(i) for i in range(self.random.randint(1, 2))] if self.chance(0.5) else []
        if calls:
            assistant["tool_calls"] = calls
        yield assistant
        for call in calls:
            yield {"role": "tool", "content": self.text(), "tool_call_id": call["id"], "name": call["function"]["name"]}

    def variables(self):
        messages = [{"role": "system", "content": self.text()}] if self.chance(0.5) else []
        for _ in range(self.random.randint(1, 4)):
            messages.extend(self.turn())
        variables = {"messages": messages, "add_generation_prompt": self.chance(0.7), "bos_token": "<s>", "eos_token": "</s>"}
        if self.chance(0.4):
            variables["tools"] = [self.tool(i) for i in range(self.random.randint(1, 3))]
        if self.chance(0.3):
            variables["enable_thinking"] = self.chance(0.5)
        if self.chance(0.2):
            variables["reasoning_effort"] = self.random.choice(["low", "medium", "high"])
        return variables


# ---- Commands ----

GENERATED_VARIABLES = [
    {"a": 1, "b": True, "xs": [3, "x", None, 2.5, [1]], "d": {"k": "v", "items": 2, "n": {"z": 1}}, "s": f"some Text{SENTINEL}\n", "n": 5, "f": -2.75,
     "t": "a \u00c4b", "messages": [{"role": "system", "content": "You <b>are</b>"}, {"role": "user", "content": f"hi, \u00e4{SENTINEL}"}]},
    {"a": SENTINEL, "b": False, "xs": ["b", "a", "C"], "d": {"k": SENTINEL, "b": [SENTINEL], "A": None}, "s": "", "n": 0, "f": 1e100,
     "t": f"{SENTINEL}a,l{SENTINEL}", "messages": [{"role": "user", "content": "x\r\ny", "k": 1}, {"role": "assistant", "content": None}]},
]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return file.read()


def compare_generated(comparison, n, seed):
    features = collections.Counter()
    for i in range(seed, seed + n):
        source = Generator(i).template()
        features.update(name for name, pattern in FEATURE_PATTERNS.items() if pattern.search(source))
        comparison.compare(f"generated {i}", source, GENERATED_VARIABLES[i % 2], False)
    print("uses of features: " + ", ".join(f"{name} {features[name]}" for name in sorted(FEATURE_PATTERNS, key=lambda name: features[name])))
    rare = [name for name in FEATURE_PATTERNS if features[name] * 100 < n]
    if rare:
        print("used by less than 1% of the templates: " + ", ".join(rare))
    return not rare or n < 1000


def tamed(variables):
    """A conversation that most templates accept: turns alternate, contents are texts, arguments objects, ids of nine letters."""
    messages = []
    for message in variables["messages"]:
        content = message.get("content") or "Well."
        message = {**message, "content": content if isinstance(content, str) else "".join(part["text"] for part in content)}
        last = messages[-1]["role"] if messages else "system"
        if message["role"] == last == "user":
            continue
        if message["role"] == "user" and last == "tool":
            messages.append({"role": "assistant", "content": "So."})
        if message["role"] == "tool":
            message["tool_call_id"] = "abcdefghi"
        if message.get("tool_calls"):
            function = {"name": "f1", "arguments": {"a": "x", "b": {"c": [1, None]}}}
            message["tool_calls"] = [{"id": "abcdefghi", "type": "function", "function": function}]
        messages.append(message)
    return {"date_string": "1 Jan 2026", "datetime": "1 Jan 2026", "functions": "[]", **variables, "messages": messages}


def compare_files(comparison, paths, n, seed):
    """What a template refuses is compared again in a tamer form."""
    for path in paths:
        source = read(path)
        conversations = Conversations(f"{seed} {os.path.basename(path)}")
        before = comparison.counts.copy()
        for i in range(n):
            variables = conversations.variables()
            if comparison.compare(f"{path}, conversation {i}", source, variables, True) in ("error", "raised"):
                comparison.compare(f"{path}, conversation {i} tamed", source, tamed(variables), True)
        of_path = comparison.counts - before
        print(f"{os.path.basename(path)[:60]:60} " + ", ".join(f"{of_path[kind]} {kind}" for kind in sorted(of_path)))


def write_golden(paths, n, seed):
    """PATH.jsonl beside each template: lines of variables and the text, or null for an error."""
    reference = Reference()
    for path in paths:
        source = read(path)
        conversations = Conversations(f"{seed} {os.path.basename(path)}")
        with open(os.path.splitext(path)[0] + ".jsonl", "w", encoding="utf-8") as file:
            for _ in range(n):
                variables = conversations.variables()
                kind, text = reference.render(source, variables)
                line = {"variables": variables, "now": NOW, "text": text if kind == "text" else None}
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_corpus(folder, paths, seed):
    """Inputs of tests/fuzz/fuzz_template.c: a template and, in the last line, its variables."""
    inputs = {}
    for path in paths:
        name = os.path.splitext(os.path.basename(path))[0]
        inputs[name] = read(path), Conversations(f"{seed} {name}").variables()
    for i in range(seed, seed + 20):
        inputs[f"generated_{i}"] = Generator(i).template(), GENERATED_VARIABLES[i % 2]
    for name, (source, variables) in inputs.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8", newline="") as file:
            file.write(source + "\n" + json.dumps(variables, ensure_ascii=False, separators=(",", ":")))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render-lines", default="build/tests/render_lines", help="the program of tests/jinja/render_lines.c")
    parser.add_argument("--templates", nargs="*", default=[], metavar="FILE")
    parser.add_argument("--conversations", type=int, default=500, metavar="N", help="for each template")
    parser.add_argument("--generated", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of conversations, and of the first generated template")
    parser.add_argument("--shown", type=int, default=10, metavar="N", help="differences that are printed")
    parser.add_argument("--write-golden", nargs="+", default=[], metavar="FILE")
    parser.add_argument("--write-corpus", metavar="FOLDER", help="inputs of fuzz_template: those of --templates, and 20 generated ones")
    options = parser.parse_args()
    os.environ["TZ"] = "UTC"
    if options.write_golden:
        write_golden(options.write_golden, 12, options.seed)
        return 0
    if options.write_corpus:
        write_corpus(options.write_corpus, options.templates, options.seed)
        return 0
    comparison = Comparison(options.render_lines, options.shown)
    compare_files(comparison, options.templates, options.conversations, options.seed)
    is_covered = compare_generated(comparison, options.generated, options.seed) if options.generated else True
    print(comparison.summary())
    return 0 if is_covered and not comparison.counts["different"] else 1


if __name__ == "__main__":
    sys.exit(main())
