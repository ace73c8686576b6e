#!/usr/bin/env python3
"""Renames identifiers and files as a map says, in code, comments, strings, docs and scripts; check.py proves what came out.

usage: python3 tools/rename/apply.py [--dry-run] MAP [MAP ...]        (in a clean checkout; then `make format`)

A map is lines of "old new" under section headers, # begins a comment:
    [*]                     for every file
    [src/a/* src/b/c.h]     for files whose old path matches one of the globs (* matches / too): wins over [*] and over sections above
    [files]                 src/old/path.c src/new/path.c
"!old new" lets `old` become a name that another one has or gets in the same file (locals of different functions, say); without it
that is refused.

In C files all identifiers outside comments and strings are renamed by exact token. In comments, strings and other text files only
what is unmistakably code: a name with an underscore, one after -D, and, in comments and between `backticks`, one in capitals of
more than three letters; and paths of moved files and folders, as they are, or from src/, src/kernels/ or any folder on, or as a
base name that only one file has. Files that are not C take [*] and the sections whose globs match their own path.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import collections
import fnmatch
import os
import re
import subprocess
import sys

C_ENDINGS = (".c", ".h", ".cu", ".cuh", ".c.in")
TEXT_ENDINGS = (".in", ".cmake", ".sh", ".py", ".md", ".1", "pipelines.txt", "CMakeLists.txt", "Makefile")
KEYWORDS = set("""auto bool break case catch char class const continue default delete do double else enum extern false float for goto
    if inline int long namespace new operator private public register restrict return short signed sizeof static struct switch
    template this true typedef typename union unsigned void volatile while""".split())

C_TOKEN = re.compile(r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<other>\.?[0-9](?:[eEpP][+-]|[\w.])*|.)""", re.S | re.X)
TEXT_TOKEN = re.compile(r"(?P<skip>\\.|[0-9]\w*)|(?P<define>-D[A-Za-z_]\w*)|(?P<path>(?:[\w.-]*\w/)+(?![\w-]|\.[\w.])|"
                        r"(?:[\w.-]+/)*[\w-]+(?:\.\w+)+|(?:[\w.-]+/)+\w+)|(?P<name>[A-Za-z_]\w*)", re.S)


def is_c(path):
    return path.endswith(C_ENDINGS)


def guard(path):
    """The include guard of a header: its path below src/; the public ones are QUERN_..., tests leave out unit/."""
    for head, prefix in (("include/quern/", "QUERN_"), ("tests/unit/", "QN_TESTS_"), ("src/", "QN_"), ("", "QN_")):
        if path.startswith(head):
            return prefix + re.sub(r"\W", "_", path[len(head):]).upper()


def resolve(name, path, files):
    """The tracked file that #include "name" in the file `path` means, or None."""
    for folder in (os.path.dirname(path), "src", "include", "", "tests"):
        found = os.path.normpath(os.path.join(folder, name))
        if found in files:
            return found
    return None


class Map:
    def __init__(self, paths):
        self.star, self.sections, self.files, self.errors, self.used = {}, [], {}, [], set()
        for path in paths:
            table = None
            for number, line in enumerate(open(path), 1):
                line, where = line.split("#")[0].strip(), f"{path}:{number}"
                if line.startswith("[") and line.endswith("]"):
                    globs = line[1:-1].split()
                    table = self.star if globs == ["*"] else self.files if globs == ["files"] else {}
                    if table is not self.star and table is not self.files:
                        self.sections.append((globs, table))
                elif line:
                    self.add(table, line, where)

    def add(self, table, line, where):
        old, new, *more = line.lstrip("!").split() + ["", ""]
        if table is None or not new or any(more):
            self.errors.append(f"{where}: '{line}' is not 'old new' in a section")
        elif table is self.files:
            if table.setdefault(old, new) != new:
                self.errors.append(f"{where}: {old} has two new places")
        elif not re.fullmatch(r"[A-Za-z_]\w*", old) or not re.fullmatch(r"[A-Za-z_]\w*", new) or new in KEYWORDS:
            self.errors.append(f"{where}: '{line}' is not a pair of identifiers")
        elif old in table and table[old][0] != new:
            self.errors.append(f"{where}: {old} becomes {new}, and {table[old][0]} at {table[old][2]}")
        else:
            table[old] = (new, line.startswith("!"), where)

    def entries(self, path):
        """{old: (new, permitted, where)} of the file with that old path."""
        out = dict(self.star)
        for globs, table in self.sections:
            if any(fnmatch.fnmatchcase(path, g) for g in globs):
                out.update(table)
        if path in self.files:
            out[guard(path)] = (guard(self.files[path]), False, out.get(guard(path), ("", False, "a guard"))[2])
        return out

    def names(self, path):
        return {old: entry[0] for old, entry in self.entries(path).items()}


class Paths:
    """What is said instead of a path of the old tree: as it is, from any folder on, or as a base name."""

    def __init__(self, moves, tracked):
        self.whole, self.bases, self.stems, self.tracked, owners = {}, {}, {}, set(tracked), collections.defaultdict(set)
        for path in tracked:
            parts = path.split("/")
            for i in range(len(parts)):
                owners["/".join(parts[i:])].add(path)
        for old, new in moves.items():
            parts = old.split("/")
            for i in range(len(parts)):
                tail, head = "/".join(parts[i:]), "".join(p + "/" for p in parts[:i])
                if len(owners[tail]) == 1 or head in ("src/", "src/kernels/", "include/"):
                    short = new[len(head):] if new.startswith(head) else "/".join(new.split("/")[-len(parts) + i:])
                    (self.whole if i + 1 < len(parts) else self.bases)[tail] = short
            stem = parts[-1].split(".")[0]
            if "_" in stem and not any(os.path.basename(p).split(".")[0] == stem for p in self.tracked - {old}):
                self.stems[stem] = os.path.basename(new).split(".")[0]
        folders = collections.defaultdict(set)
        for path in tracked:
            folders[os.path.dirname(path)].add(os.path.dirname(moves.get(path, path)))
        for old, new in ((old, next(iter(new))) for old, new in folders.items() if len(new) == 1):
            for head in ("", "src/", "src/kernels/"):
                if old != new and old.startswith(head) and new.startswith(head):
                    self.whole[old[len(head):] + "/"] = new[len(head):] + "/"
                    if "/" in old[len(head):]:
                        self.whole[old[len(head):]] = new[len(head):]
        self.moves = moves

    def new(self, text, path):
        """The path `text`, written in the file `path`, as it is to be said now, or None."""
        here = os.path.join(os.path.dirname(path), text)
        if "/" not in text:
            if here in self.tracked:
                return os.path.basename(self.moves[here]) if here in self.moves else None
            return self.bases.get(text)
        parts = text.split("/")
        for i in range(len(parts) - 1):
            if "/".join(parts[i:]) in self.whole and (i == 0 or parts[i + 1] != ""):
                return "".join(p + "/" for p in parts[:i]) + self.whole["/".join(parts[i:])]
        for i in range(len(parts) - 1, 1, -1):
            if "/".join(parts[:i]) + "/" in self.whole:
                return self.whole["/".join(parts[:i]) + "/"] + "/".join(parts[i:])
        return None


def rewrite_text(text, path, names, paths, kind, used):
    """Comments, strings and files that are not C. kind: "comment", "string" or "text"."""
    stems = paths.stems if path.endswith((".cmake", ".sh", "CMakeLists.txt", "Makefile", ".md")) else {}

    def one(found):
        word = found[0]
        if found["skip"]:
            return word
        if found["define"]:
            used.add(word[2:])
            return "-D" + names.get(word[2:], word[2:])
        if found["path"]:
            new = paths.new(word, path)
            return new if new is not None else re.sub(r"[A-Za-z_]\w*", lambda m: name(m[0], found.start() + m.start()), word)
        return name(word, found.start())

    def name(word, at):
        capitals = len(word) > 3 and word.isupper()
        quoted = capitals and text[at - 1:at] == "`" and text[at + len(word):at + len(word) + 1] == "`"
        if word in names and ("_" in word or quoted or (capitals and kind == "comment")):
            used.add(word)
            return names[word]
        return stems.get(word, word)

    return TEXT_TOKEN.sub(one, text)


def rewrite_c(text, path, names, paths, used):
    def one(found):
        if found["name"]:
            used.add(found[0])
            return names.get(found[0], found[0])
        if found["comment"] or found["string"]:
            return rewrite_text(found[0], path, names, paths, "comment" if found["comment"] else "string", used)
        return found[0]

    return C_TOKEN.sub(one, text)


def code_names(text):
    return {m["name"] for m in C_TOKEN.finditer(text) if m["name"]}


def closures(sources):
    """{path: the files of `sources` that it includes, and what they include}."""
    out = {}

    def closure(path):
        if path not in out:
            out[path] = set()
            for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]+["<]([^">]+)', sources[path], re.M):
                found = resolve(name, path, sources)
                if found:
                    out[path] |= {found} | closure(found)
        return out[path]

    for path in sources:
        closure(path)
    return out


def conflicts(words, sources):
    """Where two identifiers of a C file would become one, or a macro of an included header would take a new name. sources:
    {old path: text}. Two lists: those that the map does not permit, and those that it does."""
    bad, allowed, macros, included = [], [], {}, closures(sources)
    for path, text in sources.items():
        names = words.names(path)
        macros[path] = {names.get(m, m): m for m in re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M)}
    for path, text in sorted(sources.items()):
        entries, origins = words.entries(path), collections.defaultdict(set)
        for name in code_names(text):
            origins[entries[name][0] if name in entries else name].add(name)
        for new, olds in sorted(origins.items()):
            strict = [old for old in olds if not (old in entries and entries[old][1])]
            if len(olds) > 1:
                (bad if len(strict) > 1 else allowed).append(f"{path}: {', '.join(sorted(olds))} -> {new}")
            for old in olds - {new}:
                taken = [h for h in included[path] if macros[h].get(new, old) != old]
                if taken and not entries[old][1]:
                    bad.append(f"{path}: {old} -> {new}, which is a macro of {', '.join(sorted(taken))}")
    return bad, allowed


def left_behind(words, sources):
    """Members, functions and macros that a header gets a new name for by its section, and a file that includes it does not."""
    out, included = [], closures(sources)
    scoped = {path: code_names(text) & words.names(path).keys() for path, text in sources.items()}
    for path, text in sorted(sources.items()):
        mine, seen = words.names(path), code_names(text)
        for header in sorted(included[path]):
            theirs = words.names(header)
            for old in sorted(scoped[header] & seen):
                if mine.get(old, old) != theirs[old] and re.search(rf"(\.|->)\s*{old}\b|\b{old}\s*\(", text):
                    out.append(f"{path}: {old} becomes {mine.get(old, old)}, and {theirs[old]} in {header}")
    return out


def git(*args):
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout


def stop(title, lines):
    print(f"apply.py: {title}\n  " + "\n  ".join(lines), file=sys.stderr)
    sys.exit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("maps", nargs="+", metavar="MAP")
    parser.add_argument("--dry-run", action="store_true", help="report all, and write nothing")
    args = parser.parse_args()
    words = Map(args.maps)
    os.chdir(git("rev-parse", "--show-toplevel").strip())
    if not args.dry_run and git("status", "--porcelain", "-uno"):
        stop("the checkout is not clean", git("status", "--porcelain", "-uno").splitlines())
    tracked = git("ls-files").splitlines()
    targets = list(words.files.values())
    words.errors += [f"[files] {old}: no such file" for old in words.files if old not in tracked]
    words.errors += [f"[files] {new}: is there already, or comes twice" for new in set(targets)
                     if targets.count(new) > 1 or (new in tracked and new not in words.files)]
    texts = {path: open(path, encoding="utf-8", newline="").read() for path in tracked
             if (is_c(path) or path.endswith(TEXT_ENDINGS)) and not path.startswith("tools/rename/")}
    if words.errors:
        stop("the map is not sound", words.errors)
    sources = {path: text for path, text in texts.items() if is_c(path)}
    bad, allowed = conflicts(words, sources)
    refusal = "two names would become one (write !old new where that is meant)"
    if bad and not args.dry_run:
        stop(refusal, bad)

    paths, matched, changed, unused = Paths(words.files, tracked), set(), 0, []
    out = {}
    for path, text in texts.items():
        entries, used = words.entries(path), set()
        names = {old: entry[0] for old, entry in entries.items()}
        given = (text, path, names, paths)
        out[path] = rewrite_c(*given, used) if is_c(path) else rewrite_text(*given, "text", used)
        matched |= {(old, entries[old][2]) for old in used if old in entries}
    for path, text in out.items() if not args.dry_run else ():
        if text != texts[path]:
            changed += 1
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.write(text)
    if not args.dry_run:
        steps = [(old, new + ".moving" if new in words.files else new) for old, new in words.files.items()]
        for old, new in steps + [(new + ".moving", new) for new in targets if new in words.files]:
            os.makedirs(os.path.dirname(new) or ".", exist_ok=True)
            git("mv", old, new)
    for table in [words.star] + [table for _, table in words.sections]:
        unused += [f"{entry[2]}: {old} {entry[0]}" for old, entry in table.items() if (old, entry[2]) not in matched]
    unused += [f"[{g}] matches no file" for globs, _ in words.sections for g in globs if not fnmatch.filter(tracked, g)]
    for title, lines in ((refusal, bad), ("merged as the map permits", allowed), ("matched nothing", unused),
                         ("perhaps left behind (the same name, or another one)", left_behind(words, sources))):
        if lines:
            print(f"{title}:\n  " + "\n  ".join(lines))
    print(f"{changed} files changed, {len(words.files)} moved, {len(matched)} entries used, {len(unused)} matched nothing")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
