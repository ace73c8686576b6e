#!/usr/bin/env python3
"""Circles of files: in src/, files that need each other by the functions and data that they define, directly or by way of others.

usage: test_circles.py BUILD     BUILD: a folder with the object files of all libraries

None may pass from one folder to another, and MOST may stand inside folders: recursion that is the problem's own, such as an expression in
a filter's argument. Prints each. What a header defines inline is not seen by this, but by includes: no file includes itself by way of others,
and where x.c and x.h are one node, no circle of includes passes from one folder to another; those inside are printed.

SPDX-License-Identifier: Apache-2.0
"""
import os
import re
import subprocess
import sys

MOST = 5
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read_objects(build):
    """The files of src/ by the names that they define, and the names that each uses."""
    paths = [os.path.join(where, name) for where, _, names in os.walk(os.path.join(build, "CMakeFiles")) for name in names if name.endswith(".c.o")]
    sources = {path: path[path.rindex("/src/") + 1 : -2] for path in paths if "/src/" in path}
    sources = {path: source for path, source in sources.items() if os.path.exists(os.path.join(ROOT, source))}  # a folder may be older
    defined, used = {}, {source: set() for source in sources.values()}
    for line in subprocess.run(["nm", "-PA", *sources], capture_output=True, text=True, check=True).stdout.splitlines():
        path, rest = line.split(": ", 1)
        symbol, kind = rest.split()[:2]
        if kind in "TDBRVW":
            defined[symbol] = sources[path]
        elif kind == "U":
            used[sources[path]].add(symbol)
    return defined, used


def circles(needs):
    """The strongly connected components of more than one node (Tarjan 1972), each sorted."""
    number, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        on_stack.add(node)
        for other in sorted(needs[node]):
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
                on_stack.discard(component[-1])
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(needs):
        if node not in number:
            visit(node)
    return sorted(found)


def read_includes(root, pairs):
    """The files of src/ that each file of it includes; pairs: x.c and x.h are one node."""
    node = (lambda path: os.path.splitext(path)[0]) if pairs else (lambda path: path)
    texts = {}
    for where, _, names in os.walk(os.path.join(root, "src")):
        for name in names:
            if name.endswith((".c", ".h", ".cu", ".cuh")):
                path = os.path.join(where, name)
                with open(path, encoding="utf-8") as file:
                    texts[os.path.relpath(path, root)] = file.read()
    return include_graph(texts, node)


def include_graph(texts, node):
    needs = {node(path): set() for path in texts}
    for path, text in texts.items():
        for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', text, re.M):
            other = node("src/" + name)
            if "src/" + name in texts and other != node(path):
                needs[node(path)].add(other)
    return needs


def is_across(circle):
    return len({os.path.dirname(path) for path in circle}) > 1


def graph(defined, used):
    return {source: {defined[s] for s in symbols if s in defined and defined[s] != source} for source, symbols in used.items()}


def test_itself():
    """The test must be able to fail."""
    defined = {"f": "src/a/f.c", "g": "src/a/g.c", "h": "src/b/h.c"}
    used = {"src/a/f.c": {"g", "printf"}, "src/a/g.c": {"h"}, "src/b/h.c": {"h"}}
    assert circles(graph(defined, used)) == []
    used["src/b/h.c"].add("f")
    assert circles(graph(defined, used)) == [["src/a/f.c", "src/a/g.c", "src/b/h.c"]]
    texts = {"src/a/f.h": '#include "b/g.h"\n', "src/b/g.h": "", "src/b/g.c": '#include "b/g.h"\n'}
    base = lambda path: os.path.splitext(path)[0]
    assert circles(include_graph(texts, base)) == []
    texts["src/b/g.c"] += '  #  include "a/f.h"\n'
    assert circles(include_graph(texts, str)) == []
    assert circles(include_graph(texts, base)) == [["src/a/f", "src/b/g"]] and is_across(["src/a/f", "src/b/g"])
    texts["src/b/g.h"] += '#include "a/f.h"\n'
    assert circles(include_graph(texts, str)) == [["src/a/f.h", "src/b/g.h"]]


def main(build):
    sys.setrecursionlimit(10000)
    test_itself()
    defined, used = read_objects(build)
    if len(used) < 100:
        sys.exit(f"{build}: object files of {len(used)} sources, expected all of src/")
    found = circles(graph(defined, used))
    across = [circle for circle in found if is_across(circle)]
    for circle in found:
        print(("across folders: " if circle in across else "") + " ".join(circle))
    print(f"{len(used)} files, {len(found)} circles, {len(across)} of them across folders")
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    files, pairs = circles(read_includes(root, False)), circles(read_includes(root, True))
    for circle in files + pairs:
        print(("includes, across folders: " if is_across(circle) else "includes: ") + " ".join(circle))
    print(f"includes: {len(files)} circles of files, {len(pairs)} of files where x.c and x.h are one")
    if across or len(found) > MOST or files or any(map(is_across, pairs)):
        sys.exit(f"none may be across folders, {MOST} may be inside of them, none of which by includes of headers alone")


main(sys.argv[1])
