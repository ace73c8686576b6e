#!/usr/bin/env python3
"""Text of snprintf that could pass its buffer: in src/ and tests/ no code uses what snprintf or vsnprintf returns, prints
behind what a buffer has, or names another size than that of the buffer. src/base/append.c does that once, for all. Nor is there a
function that writes without a size (sprintf, strcat and the like) in src/ and tests/kernels/; strcpy only where CONTRIBUTING.md says so.

    test_text_buffers.py [ROOT]
"""
import os
import re
import sys

HELPER = "src/base/append.c"
WITHOUT_SIZE = ("sprintf", "vsprintf", "strcat", "strncat", "strncpy", "gets")


def strip(text):
    """The text with comments, strings and characters blanked, in as many bytes."""
    pattern = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def blank(match):
        word = match.group(0)
        if word[0] in "\"'":
            return word[0] + re.sub(r"[^\n]", "_", word[1:-1]) + word[-1]
        return re.sub(r"[^\n]", " ", word)

    return pattern.sub(blank, text)


def arguments(text, open_at):
    """The arguments of a call, from its parenthesis."""
    depth, begin, found = 0, open_at + 1, []
    for at in range(open_at, len(text)):
        c = text[at]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if (c == "," and depth == 1) or depth == 0:
            found.append(text[begin:at].strip())
            begin = at + 1
        if depth == 0:
            return found
    return found


DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*\n", re.M)


def is_statement(text, at):
    """Whether a call that begins at `at` is a statement: nothing takes its result."""
    before = DIRECTIVE.sub("", text[:at]).rstrip()
    if not before or before[-1] in ";{}" or re.search(r"\b(else|do)$", before):
        return True
    if before[-1] == ":":
        return re.search(r"(\bcase\b[^;{}?]*|\bdefault\s*|[;{}]\s*\w+\s*):$", before) is not None
    if before[-1] != ")":
        return False
    depth = 0
    for k in range(len(before) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(before[k], 0)
        if depth == 0:
            return re.search(r"\b(if|for|while|switch|\w+foreach)\s*$", before[:k]) is not None
    return False


def problems(path, text):
    text = strip(text)
    for match in re.finditer(r"\b(v?snprintf)\s*(\()", text):
        line = text.count("\n", 0, match.start()) + 1
        args = arguments(text, match.start(2))
        if path == HELPER or len(args) < 3:
            continue
        to, size = args[0], args[1]
        if not is_statement(text, match.start()):
            yield line, f"the result of {match.group(1)} is used: qn_append, qn_print"
        elif not re.fullmatch(r"(\(\*\w+\)|[\w.\[\]]+)(->[\w.\[\]]+)*", to):
            yield line, f"{match.group(1)} prints to '{to}', which is no whole buffer: qn_append"
        elif size.startswith("sizeof") and re.sub(r"^sizeof\b\s*", "", size) not in (to, f"({to})"):
            yield line, f"{match.group(1)} prints to '{to}', but the size is '{size}'"
        elif not size.startswith("sizeof") and re.search(r"[-*/]", size):
            yield line, f"{match.group(1)} prints to '{to}' with what is left of a size, '{size}': qn_append"
    if not path.startswith("tests/") or path.startswith("tests/kernels/"):
        for match in re.finditer(r"\b(" + "|".join(WITHOUT_SIZE) + r")\s*\(", text):
            yield text.count("\n", 0, match.start()) + 1, f"{match.group(1)} knows no size"


def check(root):
    n_files, found = 0, []
    for folder in ("src", "tests"):
        for where, _, names in sorted(os.walk(os.path.join(root, folder))):
            for name in sorted(names):
                if not name.endswith((".c", ".h", ".cu", ".cuh")):
                    continue
                path = os.path.relpath(os.path.join(where, name), root)
                with open(os.path.join(where, name), encoding="utf-8") as file:
                    text = file.read()
                n_files += 1
                found += [f"{path}:{line}: {what}" for line, what in problems(path, text)]
    return n_files, found


def test_itself():
    """The test must be able to fail: each wrong line has to be seen, and no right one."""
    wrong = (
        'const int n = snprintf(text, sizeof text, "%d", x);',
        'n += (size_t)snprintf(text + n, sizeof text - n, "%d", x);',
        'snprintf(text + 2 * i, 3, "%02x", x[i]);',
        'snprintf(&text[n], 3, "%02x", x[i]);',
        "vsnprintf(text + n, sizeof text - (size_t)n, format, list);",
        'snprintf(text, sizeof text - 1, "%d", x);',
        'snprintf(text, sizeof other, "%d", x);',
        'snprintf(to, size - used, "%d", x);',
        'if (snprintf(text, sizeof text, "%d", x) >= 5) f();',
        'return snprintf(text, sizeof text, "%d", x);',
        'y = a ? 1 : snprintf(text, sizeof text, "%d", x);',
        'f(snprintf(text, sizeof text, "%d", x));',
        'strcat(text, "x");',
        'at += sprintf(at, "x");',
    )
    right = (
        'snprintf(text, sizeof text, "%d = snprintf(text + n, 1)", x);',
        'snprintf(a->b[i].text, sizeof a->b[i].text, "%d", x);',
        'if (y(z))\n snprintf(text, sizeof(text), "%d", x);\nelse\n snprintf(text, MAX, "x");',
        '#define X(a) \\\n    "b" a\n    snprintf((*out)->name, sizeof(*out)->name, "%s", X("c"));',
    'switch (x) {\ncase A: snprintf(text, size, "x"); break;\ndefault: snprintf(text, size, "y");\n}',
        "vsnprintf(text, sizeof text, format, list); /* n = snprintf(a, b, c) */",
    )
    for line in wrong:
        if not list(problems("src/x.c", "void f(void)\n{\n    " + line + "\n}\n")):
            sys.exit(f"test_text_buffers: did not notice: {line}")
    for line in right:
        for _, what in problems("src/x.c", "void f(void)\n{\n    " + line + "\n}\n"):
            sys.exit(f"test_text_buffers: is wrong about: {line}: {what}")


test_itself()
N_FILES, FOUND = check(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QN_SOURCE_DIR", "."))
print("\n".join(FOUND + [f"{N_FILES} files"]))
sys.exit(1 if FOUND else 0)
