#!/usr/bin/env python3
"""Proves that a revision is another one with identifiers and files renamed as a map says (apply.py describes maps).

usage: python3 tools/rename/check.py MAP [MAP ...] OLD_REV NEW_REV [--allow PATH ...] [--objects OLD_BUILD NEW_BUILD]

Sources (.c .h .cu .cuh .c.in .py pipelines.txt) of both revisions lose their comments and become tokens: identifiers, numbers,
strings, characters, punctuators, ends of directives. With the old ones mapped, both sides must be the same tokens, and no two
identifiers of a file may have become one. White space, continued lines and the order of includes that follow each other do not
matter; adjacent strings are one. Strings that differ are listed, "by hand" where the map does not explain them, and are no
failure. A file that only one side has is a failure, unless --allow names it; so is everything else. Exit status 1 on failure.

--objects compares what the two revisions were compiled to, with the same options: of the host's objects the sections .text*, and
what they refer to, byte for byte, with symbols as a one-to-one renaming that agrees with the map (.data* and .rodata* too, but
differences there, which may be text, are listed and are no failure); of cubins all that is loaded (.text.*, .nv.constant*,
.nv.global*, .nv.shared*, .nv.info*), with the kernel's name in the section names mapped.

Not covered: CMake, shell scripts, docs; and, but for --objects, what the preprocessor makes strings or names of (#x, a##b).

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import collections
import fnmatch
import io
import os
import re
import struct
import subprocess
import sys
import tarfile
import tokenize

sys.dont_write_bytecode = True # apply.py's, into the checkout
from apply import Map, Paths, conflicts, is_c, resolve, rewrite_text

TOKEN = re.compile(r"""(?P<space>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/)|(?P<line>\n)
    |(?P<string>(?:u8|u|U|L)?"(?:\\.|[^"\\\n])*")|(?P<char>(?:u|U|L)?'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)|(?P<number>\.?[0-9](?:[eEpP][+-]|[\w.])*)
    |(?P<punctuator>\.\.\.|<<=|>>=|->|\+\+|--|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^]=|\#\#|::|.)""", re.S | re.X)


def tree(rev):
    data = subprocess.run(["git", "archive", rev], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}


def sources(files):
    return {p: d.decode() for p, d in files.items() if (is_c(p) or p.endswith(("/pipelines.txt", ".py"))) and
            not p.startswith("tools/rename/")}


def tokens(text, include):
    """[(kind, text)]; `include` makes of the name in an #include what stands for it."""
    out, block, directive = [], set(), 0
    found = [m for m in TOKEN.finditer(re.sub(r"\\\r?\n", "", text)) if not m["space"]]
    i = 0
    while i < len(found):
        kind, word = found[i].lastgroup, found[i][0]
        at_start = i == 0 or found[i - 1].lastgroup == "line"
        if at_start and word == "#" and found[i + 1:i + 2] and found[i + 1][0] == "include":
            end = next((j for j in range(i, len(found)) if found[j].lastgroup == "line"), len(found))
            block.add(include("".join(m[0] for m in found[i + 2:end])))
            i = end
            continue
        if kind == "line":
            if directive:
                out.append(("line", "\\n"))
            directive = 0
            i += 1
            continue
        if block:
            out.append(("includes", " ".join(sorted(block))))
            block = set()
        directive = directive + 1 if directive or (at_start and word == "#") else 0
        if directive == 3 and out[-1][1] == "define" and found[i + 1:i + 2] and found[i + 1].start() == found[i].end() and \
                found[i + 1][0] == "(":
            kind = "macro" # with parameters: the ( that follows at once is not that of a value
        if kind == "string" and out and out[-1][0] == "string" and out[-1][1][-1:] == '"' and word[0] == '"':
            out[-1] = ("string", out[-1][1][:-1] + word[1:])
        else:
            out.append((kind, word))
        i += 1
    return out + ([("includes", " ".join(sorted(block)))] if block else [])


def python_tokens(text):
    kinds = {tokenize.NAME: "name", tokenize.STRING: "string"}
    return [(kinds.get(t.type, "other"), t.string) for t in tokenize.generate_tokens(io.StringIO(text).readline)
            if t.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE)]


def pipeline_lines(text, path, words):
    """Lines of a pipelines.txt as lists of words, with sources and definitions renamed."""
    folder, names, out = os.path.dirname(path), words.names(path), []
    for line in text.splitlines():
        line = line.split("#")[0].split()
        if line:
            source = words.files.get(f"{folder}/{line[0]}", f"{folder}/{line[0]}")
            out.append([os.path.relpath(source, os.path.dirname(words.files.get(path, path)))] +
                       [re.sub(r"(?<=^-D)\w+", lambda m: names.get(m[0], m[0]), d) for d in line[1:]])
    return out


class Check:
    def __init__(self, words, old, new):
        self.words, self.old, self.new = words, old, new
        self.paths = Paths(words.files, list(old))
        self.failures, self.strings, self.n_same, self.n_tokens = [], [], 0, 0

    def include_of(self, path, files, moves):
        def include(name):
            found = resolve(name[1:-1], path, files) if name[:1] in '"<' else None
            return moves.get(found, found) or name
        return include

    def file(self, path, old_text, new_path, new_text):
        if path.endswith("pipelines.txt"):
            same = pipeline_lines(old_text, path, self.words) == pipeline_lines(new_text, new_path, Map([]))
            if not same:
                self.failures.append(f"{new_path}: its lines differ")
            self.n_same += same
            return
        names = self.words.names(path)
        if path.endswith(".py"):
            names = {old: new for old, new in names.items() if "_" in old}
            old, new = python_tokens(old_text), python_tokens(new_text)
            if len(set(old)) > len(set(new)):
                self.failures.append(f"{new_path}: {len(set(old))} different tokens, now {len(set(new))}")
        else:
            old = tokens(old_text, self.include_of(path, self.old, self.words.files))
            new = tokens(new_text, self.include_of(new_path, self.new, {}))
        old_words = [names.get(word, word) if kind in ("name", "macro") else word for kind, word in old]
        for i, ((kind, word), expected) in enumerate(zip(new, old_words)):
            if kind == old[i][0] == "string" and word != expected:
                # apply.py works on the pieces that were in the source, and so may have seen less
                mode = "text" if path.endswith(".py") else "string"
                by_map = rewrite_text(expected, path, names, self.paths, mode, set()) == word
                self.strings.append((by_map, f"{new_path}: {expected} -> {word}"))
            elif kind != old[i][0] or word != expected:
                break
        else:
            if len(old) == len(new):
                self.n_same += 1
                self.n_tokens += len(new)
                return
            i = min(len(old), len(new))
        def show(kinds, words):
            words = [word + "()" * (kind == "macro") for (kind, _), word in zip(kinds, words)]
            return " ".join(words[max(0, i - 8):i] + [">>>"] + words[i:i + 8])
        self.failures.append(f"{path} and {new_path} differ at token {i}:\n    old, mapped: {show(old, old_words)}\n"
                             f"    new:         {show(new, [word for _, word in new])}")

    def all(self, allow):
        old, new = sources(self.old), sources(self.new)
        for path in sorted(old):
            new_path = self.words.files.get(path, path)
            if new_path in new:
                self.file(path, old[path], new_path, new[new_path])
            elif path not in allow and new_path not in allow:
                self.failures.append(f"{path}: {new_path} is not in the new revision")
        for path in sorted(set(new) - {self.words.files.get(p, p) for p in old} - set(allow)):
            self.failures.append(f"{path}: is only in the new revision")
        bad, allowed = conflicts(self.words, {path: text for path, text in old.items() if is_c(path)})
        self.failures += [f"two names became one: {line}" for line in self.words.errors + bad]
        return allowed


def sections(path):
    """[(name, type, flags, size, bytes)], [(name, value, size, section, type)] of a 64-bit little-endian ELF file."""
    data = open(path, "rb").read()
    at, = struct.unpack_from("<Q", data, 0x28)
    n, names_at = struct.unpack_from("<HH", data, 0x3c)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, at + 64 * i) for i in range(n)]
    text = lambda table, offset: data[heads[table][4] + offset:data.index(b"\0", heads[table][4] + offset)].decode()
    out = [(text(names_at, h[0]), h[1], h[2], h[5], b"" if h[1] == 8 else data[h[4]:h[4] + h[5]], h[7]) for h in heads]
    symbols = []
    for h in heads:
        if h[1] == 2:
            for i in range(h[5] // 24):
                name, info, _, section, value, size = struct.unpack_from("<IBBHQQ", data, h[4] + 24 * i)
                symbols.append((text(h[6], name), value, size, section, info & 15))
    return out, symbols


class Objects:
    def __init__(self, check, old_build, new_build):
        self.check, self.builds, self.words = check, (old_build, new_build), check.words
        self.new_names = collections.defaultdict(set)
        for table in [self.words.star] + [table for _, table in self.words.sections]:
            for old, entry in table.items():
                self.new_names[old].add(entry[0])
        self.equal, self.different, self.notes = collections.Counter(), [], []

    def agree(self, old, new, pairs, defined):
        """Whether symbol `new` may be `old` renamed, and one to one in this object. A name that the object defines and that is not in
        the map, such as one pasted from pieces, is believed."""
        stem, _, tail = old.partition(".")
        names = {name + "." * bool(tail) + tail for name in self.new_names.get(stem, set()) | {stem}}
        if (stem in self.new_names or not defined) and new not in names:
            return False
        return pairs.setdefault((0, old), new) == new and pairs.setdefault((1, new), old) == old

    def references(self, path):
        """{section: bytes} and {section: [(offset, type, where, symbol or section, addend)]} of relocations, of code and of data
        that is no table of strings; a place in such a table is as good as any other."""
        parts, symbols = sections(path)
        holds = lambda name: name.startswith((".text", ".data", ".rodata")) and not name.startswith(".rodata.str")
        out = {}
        for name, kind, _, size, data, target in parts:
            if kind == 4 and holds(name[5:]):
                rows = []
                for offset, info, addend in struct.iter_unpack("<QQq", data):
                    symbol, _, _, section, what = symbols[info >> 32]
                    local = what == 3 or symbol.startswith(".L")
                    symbol = re.sub(r"\.rodata\.(str|cst).*", r".rodata.\1", parts[section][0]) if local else symbol
                    where = "section" if local else "here" if section else "elsewhere"
                    rows.append((offset, info & 0xffffffff, where, symbol, 0 if symbol.startswith(".rodata.") else addend))
                out[name[5:]] = rows
        return {name: data for name, _, _, _, data, _ in parts if holds(name)}, out

    def host(self, old, new):
        (old_data, old_rows), (new_data, new_rows), pairs, out = self.references(old), self.references(new), {}, []
        for name in sorted(old_data.keys() | new_data.keys()):
            a, b = old_data.get(name, b""), new_data.get(name, b"")
            found = [f"{name}: {len(a)} and {len(b)} bytes, differ at {len(os.path.commonprefix([a, b])):#x}"] if a != b else []
            a, b = old_rows.get(name, []), new_rows.get(name, [])
            found += [f"{name}: {len(a)} and {len(b)} references"] if len(a) != len(b) else []
            for x, y in zip(a, b):
                same = x[3] == y[3] if x[2] == "section" else self.agree(x[3], y[3], pairs, x[2] == "here")
                if not same or x[:3] != y[:3] or x[4] != y[4]:
                    found.append(f"{name}+{x[0]:#x}: {x[3]}+{x[4]} and {y[3]}+{y[4]}")
            if name.startswith(".text"):
                out += found
            elif found: # text in an array of characters may have changed
                self.notes.append(f"{os.path.relpath(new, self.builds[1])}: {found[0]}")
        return out

    def cubin(self, old, new, source):
        """What differs between two cubins. Sections of a kernel are found by the mapped name of the kernel."""
        names, tables = self.words.names(source), []
        for path, mapping in ((old, names), (new, {})):
            table = {}
            for name, kind, flags, size, data, _ in sections(path)[0]:
                if re.match(r"\.(text|nv\.(constant|global|shared|info|compat))|\.rodata", name):
                    name = re.sub(r"\w+$", lambda m: mapping.get(m[0], m[0]), name)
                    table[name] = (kind, flags, size, data)
            tables.append(table)
        a, b = tables
        return [f"{name}: {len(a[name][3]) if name in a else 'no'} and {len(b[name][3]) if name in b else 'no'} bytes"
                for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]

    def pair(self, kind, old, new, compare):
        old, new = os.path.join(self.builds[0], old), os.path.join(self.builds[1], new)
        missing = [path for path in (old, new) if not os.path.exists(path)]
        lines = [f"{path} is not there" for path in missing] or compare(old, new)
        self.equal[kind] += not lines
        if lines:
            self.different.append(f"{kind} {os.path.relpath(new, self.builds[1])}: " + "; ".join(lines[:4]))

    def all(self):
        for target in ("quern-objects", "quern", "quern-check"):
            for path in sorted(self.check.old):
                old, new = (f"CMakeFiles/{target}.dir/{p}.o" for p in (path, self.words.files.get(path, path)))
                if path.endswith(".c") and os.path.exists(os.path.join(self.builds[0], old)):
                    self.pair("object", old, new, self.host)
        for path in sorted(p for p in self.check.old if fnmatch.fnmatch(p, "src/kernels/*/pipelines.txt")):
            lines, new_path = self.check.old[path].decode(), self.words.files.get(path, path)
            for old, new in zip(pipeline_lines(lines, path, Map([])), pipeline_lines(lines, path, self.words)):
                source = f"{os.path.dirname(path)}/{old[0]}"
                name = lambda p, line: re.sub(r"\W", "_", f"{os.path.basename(os.path.dirname(p))}/{line[0]} " + " ".join(line[1:]))
                for arch in sorted({f.split(".")[-2] for f in os.listdir(f"{self.builds[0]}/cuda")
                                    if f.startswith(name(path, old) + ".") and f.endswith(".cubin")} or {"sm_90a"}):
                    self.pair("cubin", f"cuda/{name(path, old)}.{arch}.cubin", f"cuda/{name(new_path, new)}.{arch}.cubin",
                              lambda a, b: self.cubin(a, b, source))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", nargs="+", metavar="MAP... OLD_REV NEW_REV")
    parser.add_argument("--allow", nargs="+", action="extend", default=[], metavar="PATH", help="may be on one side only")
    parser.add_argument("--objects", nargs=2, metavar=("OLD_BUILD", "NEW_BUILD"))
    args = parser.parse_args()
    *maps, old_rev, new_rev = args.maps
    check = Check(Map(maps), tree(old_rev), tree(new_rev))
    permitted = check.all(args.allow)
    for by_map, line in sorted(check.strings):
        print(("string by the map: " if by_map else "string by hand: ") + line)
    for line in permitted:
        print(f"merged as the map permits: {line}")
    failures = len(check.failures)
    if args.objects:
        objects = Objects(check, *args.objects)
        objects.all()
        check.failures += objects.different
        print("".join(f"data differs: {line}\n" for line in objects.notes), end="")
        print(f"compiled: {objects.equal['object']} objects and {objects.equal['cubin']} cubins equal, "
              f"{len(objects.different)} different")
    for line in check.failures:
        print(f"FAILED: {line}")
    by_hand = sum(not by_map for by_map, _ in check.strings)
    print(f"{check.n_same} files of {check.n_tokens} tokens are the same, {failures} failures, {len(check.strings)} strings differ "
          f"({by_hand} by hand), {len(permitted)} merges permitted")
    sys.exit(1 if check.failures else 0)


if __name__ == "__main__":
    main()
