"""quern chat on a terminal: a pseudo-terminal that this script types on, and pyte, which shows what a user would see.

    chat_terminal.py QUERN PARROT DEMO_MODEL WORK_FOLDER

Each test is a function; those whose names are given after the folder are run, or all.
"""

import fcntl
import json
import os
import pty
import random
import re
import select
import signal
import struct
import sys
import termios
import time
import unicodedata

import pyte
from wcwidth import wcwidth

QUERN, PARROT, DEMO, WORK = sys.argv[1:5]
ANSWER = "Hé 世🙂!"
SECONDS = float(os.environ.get("QN_TERMINAL_SECONDS", 60))
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


class Terminal:
    """A program on a terminal. answers: the terminal tells where its cursor is."""

    def __init__(self, arguments, columns=80, rows=100, environment=(), answers=False):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        self.raw, self.seen, self.tail, self.status = b"", 0, b"", None
        variables = dict(os.environ, TERM="xterm-256color", LC_ALL="C.UTF-8", QN_DEVICE="cpu", XDG_STATE_HOME=os.path.join(WORK, "state"))
        variables.pop("NO_COLOR", None)
        variables.update(environment)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execve(arguments[0], arguments, variables)
        if answers:
            self.screen.write_process_input = lambda text: os.write(self.fd, text.encode())

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """Shows what comes within some seconds. False: nothing more will."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        self.raw += data
        data = self.tail + data
        cut = len(data)
        while cut and len(data) - cut < 4:  # not inside a character
            try:
                text = data[:cut].decode()
                break
            except UnicodeDecodeError:
                cut -= 1
        self.tail = data[cut:]
        for character in data[:cut].decode(errors="replace"):  # pyte drops what follows a joiner in one piece
            self.stream.feed(character)
        return bool(data)

    def wait(self, ready, what):
        end = time.monotonic() + SECONDS
        while not ready():
            if time.monotonic() > end or not self.read(0.05):
                check(ready(), f"{what}; the terminal shows:\n" + "\n".join(self.lines()))
                return

    def expect(self, text):
        """Waits until bytes come after those expected before."""
        data = text.encode()
        self.wait(lambda: data in self.raw[self.seen :], f"'{text!r}' does not come")
        self.seen = max(self.raw.find(data, self.seen) + len(data), self.seen)

    def see(self, *lines):
        """Waits until the last lines are these, and the cursor is at the end of the last, or where it has a '_'."""
        column = lines[-1].find("_")
        wanted = [line.replace("_", "", 1) if i == len(lines) - 1 else line for i, line in enumerate(lines)]
        self.wait(lambda: self.lines()[-len(lines) :] == [w.rstrip() for w in wanted], f"the last lines are not {wanted}")
        if column >= 0:
            at = sum(max(wcwidth(c), 0) for c in lines[-1][:column])
            self.wait(lambda: self.screen.cursor.x == at, f"the cursor is not in column {at} of {wanted} but in {self.screen.cursor.x}")

    def prompt(self):
        """Waits until a message can be typed."""
        self.wait(
            lambda: self.raw.rfind(b"\x1b[?2004h") > self.raw.rfind(b"\x1b[?2004l")
            and self.lines()[-1:]
            and self.lines()[-1].startswith(">"),
            "no prompt",
        )
        self.seen = len(self.raw)

    def lines(self):
        """The rows that are shown, without those at the end that are empty."""
        rows = []
        for y in range(self.screen.lines):
            row = self.screen.buffer[y]
            rows.append("".join(row[x].data for x in range(self.screen.columns)).rstrip())
        last = max([self.screen.cursor.y] + [i for i, row in enumerate(rows) if row])
        return rows[: last + 1]

    def type(self, keys):
        os.write(self.fd, keys.encode() if isinstance(keys, str) else keys)

    def stop(self):
        """Stops the program, which nothing can hinder. Whether it is in an answer."""
        os.kill(self.pid, signal.SIGSTOP)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            self.read(0.05)
        return b"\x1b[?2004h" not in self.raw[self.seen :]

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def modes(self):
        return termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def is_sane(self):
        on, off = self.raw.rfind(b"\x1b[?2004h"), self.raw.rfind(b"\x1b[?2004l")
        return self.modes() == termios.ICANON | termios.ECHO | termios.ISIG and off >= on

    def finish(self, what="it ends"):
        """Its status; checks that the terminal is as it was."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while select.select([self.fd], [], [], 0)[0] and self.read(0):
                    pass
                check(self.is_sane(), f"{what}: the terminal is not as it was")
                os.close(self.fd)
                return status
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        check(False, f"{what}: it does not end; the terminal shows:\n" + "\n".join(self.lines()))
        return -1

    def leave(self):
        self.type("\x05\x15/exit\r")
        check(self.finish("/exit") == 0, "/exit: status")


def chat(*arguments, model=PARROT, **options):
    return Terminal([QUERN, "chat", "-m", model, "-t", "1", *arguments], **options)


# ---- A model that says what it is told ----

ENCODED = {}
for byte in range(256):
    printable = 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255
    ENCODED[byte] = chr(byte if printable else 256 + sum(not (33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255) for b in range(byte)))


def speaker(text):
    """The parrot with a text as the spelling of the tokens that it says, which comes in pieces cut anywhere. The fourth is a space."""
    data = open(PARROT, "rb").read()
    spoken = text.encode()
    spoken += b" " * 64
    space = spoken.index(b" ", 1)
    cuts = sorted(random.sample(range(1, space), min(2, space - 1))) if space > 2 else []
    pieces = [spoken[a:b] for a, b in zip([0] + cuts, cuts + [space])]
    pieces += [b""] * (3 - len(pieces))
    rest = spoken[space + 1 :]
    cuts = sorted(random.sample(range(1, len(rest)), 7))
    pieces += [rest[a:b] for a, b in zip([0] + cuts, cuts + [len(rest)])]
    edits = []
    for byte, piece in zip([72, 195, 169, 228, 184, 150, 240, 159, 153, 130, 33], pieces):
        old, new = ENCODED[byte].encode(), "".join(ENCODED[b] for b in piece).encode()
        old, new = struct.pack("<Q", len(old)) + old, struct.pack("<Q", len(new)) + new
        assert data.count(old) == 1, byte
        edits.append((data.index(old), old, new))
    grown = sum(len(new) - len(old) for at, old, new in edits)
    for at, old, new in sorted(edits, reverse=True):
        data = data[:at] + new + data[at + len(old) :]
    # The data after the header stays aligned to 32 bytes: the chat template, which ends with "{% endif %}", gets spaces inside.
    key = b"tokenizer.chat_template"
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    (n,) = struct.unpack_from("<Q", data, at)
    template = data[at + 8 : at + 8 + n]
    end = template.rindex(b"%}")
    padded = template[:end] + b" " * (-grown % 32) + template[end:]
    data = data[:at] + struct.pack("<Q", len(padded)) + padded + data[at + 8 + n :]
    path = os.path.join(WORK, "speaker.gguf")
    with open(path, "wb") as file:
        file.write(data)
    return path


def says(text, columns, message="a\r", **options):
    """The rows of an answer, and all that was printed for it."""
    terminal = chat(model=speaker(text), columns=columns, **options)
    terminal.prompt()
    terminal.type(message)
    terminal.expect("\x1b[?2004l")
    begin = terminal.seen
    first = len(terminal.lines())
    terminal.prompt()
    rows, raw = terminal.lines()[:-1], terminal.raw[begin:]
    terminal.leave()
    start = next(i for i, row in enumerate(rows) if row.startswith("> a")) + 1
    while rows and not rows[-1]:
        rows.pop()
    return rows[start:], raw


def columns_of(text):
    return sum(max(wcwidth(c), 0) for c in text)


def clean(text):
    """The text without what pyte drops: characters without columns that do not combine."""
    return unicodedata.normalize("NFC", "".join(c for c in text if wcwidth(c) > 0 or unicodedata.combining(c)))


def wrapped(text, columns):
    """Words put in lines of at most so many columns; a word that is longer begins where it stands, and is cut at the edge."""
    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in re.findall(r" *[^ ]+", paragraph):
            if columns_of(line + word) <= columns:
                line += word
                continue
            if line:
                lines.append(line)
                word = word.lstrip(" ")
            while columns_of(word) > columns:
                lines.append(word[:columns])
                word = word[columns:]
            line = word
        lines.append(line)
    return [line.rstrip() for line in lines]


# ---- Answers ----

WORDS = "The quick brown fox jumps over the lazy dog, and a mill grinds grain; " * 4
LONG = "See https://example.org/a/very/long/address/without/any/place/to/break/it/but/the/edge?x=1&y=2 for more, or do not."


def test_words():
    for columns in (20, 40, 80, 132):
        for text in (
            WORDS + "\n\n  indented by two\n" + WORDS[:-1],
            LONG,
            "a " * 150,
            "x" * (3 * columns),
            ("y" * columns + " ") * 3,
            ("z" * (columns - 1) + " ") * 3 + "\nend",
        ):
            text = text.rstrip()
            rows, raw = says(text, columns)
            expected = wrapped(text, columns)
            check(rows == expected, f"{columns} columns: {rows} are not {expected}")


def test_code():
    code = 'def f(x):\n    return "a string that is longer than the edge of a terminal of twenty or forty columns"\n\tz = 1'
    text = f"Some words before it.\n```python\n{code}\n```\nAnd {WORDS}".rstrip()
    for columns in (20, 40, 80):
        rows, raw = says(text, columns)
        shown = [line.expandtabs() for line in code.split("\n")]
        cut = [line[i : i + columns].rstrip() for line in shown for i in range(0, len(line), columns)]
        expected = wrapped("Some words before it.\n```python", columns) + cut + ["```"] + wrapped(("And " + WORDS).rstrip(), columns)
        check(rows == expected, f"code in {columns} columns: {rows} are not {expected}")
    # A long line is one line of the terminal: nothing breaks it but the edge.
    check(code.split("\n")[1].encode() in raw.replace(b"\r", b""), "a line of code is broken")


def test_wide():
    text = "日本語の文章は空白なしで書かれ、どこでも改行できる。「ただし」、句読点は行頭に来ない。" * 3
    for columns in (20, 39, 80):
        rows, raw = says(text, columns)
        check("".join(rows) == text, f"wide text in {columns} columns: {rows}")
        check(all(columns_of(row) <= columns for row in rows), f"wide text in {columns} columns: a row is too long")
        check(
            not any(row[0] in "、。」" or row[-1] == "「" for row in rows),
            f"wide text in {columns} columns: punctuation at the edge: {rows}",
        )


CLUSTERS = ["👨‍👩‍👧‍👦", "👩🏽‍🚀", "🇩🇪", "🇫🇷", "👍🏿", "1️⃣", "❤️", "🏳️‍🌈", "e\u0301", "n\u0303\u0323", "各", "👩‍❤️‍👨", "가"]


def test_clusters():
    random.seed(1)
    for columns in (20, 40, 80):
        for gap in (" ", "", " word "):
            text = gap.join(random.choice(CLUSTERS) for _ in range(60))
            rows, raw = says(text, columns)
            # Nothing is lost, nothing is shown twice, and no cluster is in two rows.
            shown = "".join("".join(rows).split())
            check(clean(shown) == clean("".join(text.split())), f"clusters in {columns} columns, '{gap}' between: {rows}")
            printed = raw.decode(errors="replace")
            for cluster in CLUSTERS:
                check(
                    len(cluster) < 2 or not re.search("\r?\n".join(map(re.escape, [cluster[:1], cluster[1:]])), printed),
                    f"a line ends inside of {cluster} in {columns} columns",
                )
            check(all(columns_of(row) <= columns for row in rows), f"clusters in {columns} columns: a row is too long: {rows}")


def test_harmless():
    text = "one\x1b[31m two\x07 \x1b]0;title\x07three\r four\x0b\x0c\u009b5m five \x1b[2Jsix\tseven \x08\x7f eight"
    rows, raw = says(text, 80)
    check(
        rows == ["one[31m two ]0;titlethree four5m five [2Jsix   seven  eight"]
        or [" ".join(r.split()) for r in rows] == ["one[31m two ]0;titlethree four5m five [2Jsix seven eight"],
        f"control characters: {rows}",
    )
    shown = re.sub(rb"\x1b\[[0-9;?]*[hlKABCDGm]", b"", raw)
    check(not re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", shown), f"control characters are printed: {shown}")


def test_resize():
    """A terminal that becomes narrower, and wider, while an answer comes."""
    for sizes in ((60, 30), (30, 100), (100, 20)):
        path = os.path.join(WORK, "resized.json")
        terminal = chat("--seed", "1", model=DEMO, columns=sizes[0])
        terminal.prompt()
        terminal.type("Tell me a long story about a dog.\r")
        terminal.expect("\x1b[?2004l")
        for _ in range(12):
            terminal.expect(" ")
        runs = terminal.stop()
        terminal.resize(sizes[1], 100)
        terminal.go_on()
        terminal.prompt()
        if not runs:  # this script was slower than the answer
            terminal.leave()
            continue
        last = [row for row in terminal.lines() if row][-4:-1]
        check(all(len(row) <= sizes[1] for row in last), f"resize to {sizes[1]}: a row is too long")
        terminal.type(f"/save {path}\r")
        terminal.expect("saved")
        terminal.prompt()
        terminal.leave()
        words = json.load(open(path))["messages"][-1]["content"].split()
        shown = " ".join(last).split()
        check(shown == words[-len(shown) :], f"resize to {sizes[1]}: {shown} are not the last words: {words}")


# ---- Looks ----


def test_colour():
    for environment, styled in (
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
    ):
        terminal = chat(environment=environment)
        terminal.expect("> ")
        terminal.type("a\r")
        terminal.expect(ANSWER)
        terminal.expect("> ")
        has_style = re.search(rb"\x1b\[[0-9;]*m", terminal.raw) is not None
        check(has_style == styled, f"styles with {environment}: {terminal.raw}")
        if styled:
            check(b"\x1b[1;32m> \x1b[0m" in terminal.raw and ANSWER.encode() in terminal.raw, "the prompt has no style")
        if environment.get("TERM") in ("dumb", ""):
            check(b"\x1b" not in terminal.raw, f"sequences on a terminal without: {terminal.raw}")
        terminal.type("/exit\r")
        terminal.finish()


def test_begin():
    terminal = chat("-c", "300")
    terminal.prompt()
    check("context of 300 tokens" in terminal.lines()[0], f"the beginning: {terminal.lines()}")
    terminal.leave()
    terminal = chat(model=DEMO)
    terminal.prompt()
    check(terminal.lines()[0].startswith("quern demo, ptq1_0, context of 2048 tokens"), f"the beginning: {terminal.lines()}")
    terminal.leave()
    terminal = chat(columns=30)
    terminal.prompt()
    check(
        terminal.lines() == ["parrot, f16, context of 1024", "tokens.", "/help lists the commands,", "Ctrl-D leaves.", ">"],
        f"the beginning in 30 columns: {terminal.lines()}",
    )
    terminal.leave()
    terminal = chat("-q")
    terminal.prompt()
    check(terminal.lines() == [">"], f"-q: {terminal.lines()}")
    terminal.leave()


def test_reading():
    """While a prompt is read: at once how long it is, and a bar when that takes long; both fit in a row and are removed."""
    for columns in (20, 80):
        terminal = chat("--seed", "1", "-n", "1", model=DEMO, columns=columns)
        terminal.prompt()
        terminal.type("\x1b[200~" + "the cat and the dog " * 120 + "\x1b[201~\r")
        terminal.expect("reading ")
        terminal.expect("\x1b[?2004h")
        terminal.prompt()
        check(re.search(rb"\rreading \d+ tokens", terminal.raw) is not None, "nothing says that a prompt is read")
        check(not any("reading" in line for line in terminal.lines()), f"what says that a prompt is read stays: {terminal.lines()}")
        for line in re.findall(rb"\r(reading [^\x1b]*)", terminal.raw):
            check(len(line) < columns, f"'{line}' is longer than {columns} columns")
        terminal.leave()


# ---- Editing ----


def test_keys():
    terminal = chat()
    terminal.prompt()
    for keys, line in (
        ("one two three", "> one two three_"),
        ("\x01", "> _one two three"),
        ("\x1bf", "> one_ two three"),
        ("\x1bd", "> one_ three"),
        ("\x05\x17", "> one _"),
        ("\x19", "> one three_"),
        ("\x02\x02\x14", "> one ther_e"),
        ("\x05\x15", "> _"),
        ("a\x1b[Db\x1b[Cc", "> bac_"),
        ("\x1b[H\x1b[3~", "> _ac"),
        ("\x1b[F\x08", "> a_"),
        (" x\x7f\x7f\x0b", "> a_"),
        ("\x01\x0b\x19\x19", "> aa_"),
        ("\x1b[1;5D", "> _aa"),
        ("\x0b", "> _"),
    ):
        terminal.type(keys)
        terminal.see(line)
    terminal.type("two\x1b\rlines")
    terminal.see("> two", ". lines_")
    terminal.type("\x1b[H-\x1b[A!")
    terminal.wait(lambda: terminal.lines()[-2:] == ["> two!", ". -lines"], "two lines are not edited")
    terminal.type("\x1b[B\x15\x7f")
    terminal.see("> two!_")
    terminal.leave()


def test_clusters_edited():
    """Characters of several code points are one for the cursor and for deleting, on terminals of both kinds and at the edge."""
    for answers in (False, True):
        for columns in (20, 80):
            terminal = chat(columns=columns, answers=answers)
            terminal.prompt()
            for cluster in CLUSTERS:
                terminal.type(f"a{cluster}b")
                terminal.type("\x1b[D\x1b[DX")
                terminal.wait(lambda: f"aX{clean(cluster)}" in clean(terminal.lines()[-1]), f"{cluster}: the cursor does not go over it")
                terminal.type("\x1b[3~\x05\x7fc")
                terminal.see("> aXc_")
                terminal.type("\x15")
                terminal.see("> _")
            if answers:  # without gaps, as the terminal has said how wide they are
                terminal.type("|".join(["", *CLUSTERS[:3], ""]))
                terminal.wait(
                    lambda: "".join(terminal.lines()[-3:]).count("|") == 4 and "| " not in terminal.lines()[-1],
                    f"there are gaps: {terminal.lines()}",
                )
                terminal.type("\x15")
            terminal.leave()


def test_long_lines():
    """A text of more rows than the terminal; a wide character at the edge."""
    for columns, rows in ((20, 6), (40, 5)):
        terminal = chat(columns=columns, rows=rows)
        terminal.prompt()
        text = "".join(chr(ord("a") + i % 26) for i in range(columns * (rows + 3)))
        terminal.type(text)
        cells = "> " + text
        expected = [cells[i : i + columns] for i in range(0, len(cells), columns)]
        terminal.wait(lambda: terminal.lines() == expected[-rows:], f"a long text: {terminal.lines()}")
        terminal.type("\x01")
        terminal.wait(
            lambda: terminal.lines() == expected[:rows] and (terminal.screen.cursor.x, terminal.screen.cursor.y) == (2, 0),
            f"its beginning: {terminal.lines()}",
        )
        terminal.type("\x0b" + "x" * (columns - 3) + "世")
        terminal.see("> " + "x" * (columns - 3), "世_")
        terminal.type("\x02\x7f")
        terminal.see("> " + "x" * (columns - 4) + "世")
        terminal.leave()


def test_resized_editor():
    terminal = chat(columns=60, rows=20)
    terminal.prompt()
    text = "some words that take more than a row when it is narrow"
    terminal.type(text)
    terminal.see("> " + text + "_")
    terminal.resize(30, 20)
    cells = "> " + text
    terminal.wait(lambda: terminal.lines()[-2:] == [cells[:30].rstrip(), cells[30:]], "a narrower terminal")
    terminal.resize(80, 20)
    terminal.see("> " + text + "_")
    terminal.type("!")
    terminal.see("> " + text + "!_")
    terminal.leave()


def test_history():
    terminal = chat()
    terminal.prompt()
    for message in ("first", "second one", "third"):
        terminal.type(message + "\r")
        terminal.expect(ANSWER)
        terminal.prompt()
    terminal.type("new\x1b[A\x1b[A")
    terminal.see("> second one_")
    terminal.type("\x1b[B\x1b[B")
    terminal.see("> new_")
    terminal.type("\x12seco")
    terminal.see("search 'seco': _second one")
    terminal.type("\x05")
    terminal.see("> second one_")
    terminal.type("\x15keep\x12zz\x07")
    terminal.see("> keep_")
    terminal.leave()


def test_completion():
    folder = os.path.join(WORK, "folder")
    os.makedirs(os.path.join(folder, "inner"), exist_ok=True)
    for name in ("talk one.json", "talk two.json", ".hidden", "bad\x1bname"):
        open(os.path.join(folder, name), "w").close()
    terminal = chat(columns=132)
    terminal.prompt()
    for keys, line in (
        ("/sy\t", "> /system _"),
        ("/re\t", "> /re_"),
        ("/lo\t" + folder + "/ta\t", f"> /load {folder}/talk _"),
        ("/save " + folder + "/i\t", f"> /save {folder}/inner/_"),
        ("/think hi\t", "> /think high_"),
        ("/save ~/folder/talk o\t", "> /save ~/folder/talk one.json_"),
        ("no /lo\t", "> no /lo_"),
        ("//lo\t", "> //lo_"),
    ):
        terminal.type("\x15" + keys)
        terminal.see(line)
    terminal.type("\x15/re\t\t")
    terminal.see("/regen  /reset", "> /re_")
    terminal.type("\x15/load " + folder + "/\t\t\t")
    terminal.wait(
        lambda: any(line.split() == ["inner/", "talk", "one.json", "talk", "two.json"] for line in terminal.lines()[-3:]),
        f"files: {terminal.lines()}",
    )
    check(b"\x1bname" not in terminal.raw and ".hidden" not in "".join(terminal.lines()), "names of files that hide or control")
    terminal.leave()


# ---- Typing while an answer comes, and signals ----


def story(terminal):
    """Begins a long answer and stops the program in it. False: this script was slower than the answer, as on a busy machine."""
    terminal.prompt()
    terminal.type("Tell me a long story about a dog.\r")
    terminal.expect("\x1b[?2004l")
    for _ in range(4):
        terminal.expect(" ")
    return terminal.stop()


def test_typed_ahead():
    terminal = chat("--seed", "1", model=DEMO)
    story(terminal)
    check(not terminal.modes() & termios.ECHO, "the terminal echoes during an answer")
    terminal.type("typxed\x7f\x7f\x7fed ahead")
    terminal.go_on()
    terminal.see("> typed ahead_")
    answer = "\n".join(terminal.lines()[:-1])
    check("typ" not in answer.split("about a dog.")[1], f"typed text is in the answer: {answer}")
    terminal.type("\rand more\r")  # two messages
    terminal.wait(lambda: sum(line.startswith("> ") for line in terminal.lines()) >= 3, "messages that were typed are not sent")
    terminal.prompt()
    terminal.leave()


def test_interrupted():
    terminal = chat("--seed", "1", model=DEMO)
    runs = story(terminal)
    terminal.type("kept")
    terminal.type("\x03")
    terminal.go_on()
    if runs:
        terminal.see("> kept_")
    else:
        terminal.see("> _")
    terminal.type("\x03")
    terminal.see("> _")
    terminal.type("\x04")
    check(terminal.finish("Ctrl-D") == 0, "Ctrl-D: status")


def test_suspended():
    """Stopped, the terminal is as the shell left it; then the line is there again, and an answer goes on."""
    terminal = Terminal(["/bin/bash", "--norc", "--noprofile", "--noediting", "-i"], environment={"PS1": "shell$ ", "HISTFILE": "", "Q": QUERN, "M": DEMO})
    terminal.expect("shell$ ")
    sane = terminal.modes()
    terminal.type('"$Q" chat -m "$M" -t 1 --seed 1\r')  # fg prints this: it must fit in a row
    terminal.prompt()
    terminal.type("typed")
    terminal.see("> typed_")
    for signal_key in ("\x1a", "\x1a"):
        terminal.type(signal_key)
        terminal.expect("shell$ ")
        check(terminal.modes() == sane, "stopped at the prompt, the terminal has other modes")
        check(terminal.raw.rfind(b"\x1b[?2004l") > terminal.raw.rfind(b"\x1b[?2004h"), "stopped, pastes are marked")
        terminal.type("fg\r")
        terminal.see("> typed_")
        check(not terminal.modes() & termios.ECHO, "continued, the terminal echoes")
    terminal.type(" on\x15Tell me a long story about a dog.\r")
    terminal.expect("\x1b[?2004l")
    for _ in range(4):
        terminal.expect(" ")
    terminal.type("kept")
    terminal.type("\x1a")
    terminal.expect("shell$ ")
    check(terminal.modes() == sane, "stopped in an answer, the terminal has other modes")
    terminal.type("fg\r")
    terminal.see("> kept_")
    path = os.path.join(WORK, "suspended.json")
    terminal.type(f"\x15/save {path}\r")
    terminal.expect("saved")
    rows = terminal.lines()
    after = rows[max(i for i, row in enumerate(rows) if "--seed 1" in row) + 1 :]
    shown = " ".join(after[: next(i for i, row in enumerate(after) if row.startswith("> "))])
    content = " ".join(json.load(open(path))["messages"][-1]["content"].split())
    check("".join(content.split()).endswith("".join(shown.split())), f"stopped in an answer, it does not go on where it was: {shown}")
    terminal.prompt()
    terminal.type("\x15/exit\r")
    terminal.expect("shell$ ")
    check(terminal.modes() == sane, "after chat, the terminal has other modes")
    terminal.type("exit\r")
    terminal.finish("the shell")


def test_killed():
    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]
    if not os.environ.get("QN_SANITIZE"):  # a sanitizer catches the others itself
        numbers += [signal.SIGABRT, signal.SIGSEGV]
    for number in numbers:
        for in_answer in (False, True):
            terminal = chat("--seed", "1", model=DEMO)
            if in_answer:
                story(terminal)
            else:
                terminal.prompt()
            check(not terminal.modes() & termios.ECHO, "the terminal echoes")
            os.kill(terminal.pid, number)
            terminal.go_on()
            status = terminal.finish(f"signal {number}")
            check(os.WIFSIGNALED(status) and os.WTERMSIG(status) == number, f"signal {number}: status {status}")


def test_end():
    terminal = chat()
    terminal.prompt()
    terminal.type("a\r")
    terminal.expect(ANSWER)
    terminal.prompt()
    terminal.type("x\x7f\x04")
    check(terminal.finish("Ctrl-D") == 0, "Ctrl-D: status")
    terminal = chat()
    terminal.prompt()
    os.close(terminal.fd)  # the window is closed
    end, pid = time.monotonic() + SECONDS, 0
    while not pid and time.monotonic() < end:
        pid, status = os.waitpid(terminal.pid, os.WNOHANG)
        time.sleep(0.02)
    check(pid != 0, "it goes on without a terminal")


# ---- Files ----


def test_files():
    path, session = os.path.join(WORK, "a talk.json"), os.path.join(WORK, "talk.session")
    terminal = chat("--seed", "1", "--save", session, "--system", "Be kind.", model=DEMO)
    terminal.prompt()
    terminal.type("Tell me of a cat.\r")
    terminal.prompt()
    terminal.type("And of a dog?\r")
    terminal.prompt()
    terminal.type(f"/save {path}\r")
    terminal.expect("4 messages are saved. The cache, ")
    terminal.prompt()
    terminal.leave()
    messages = json.load(open(path))["messages"]
    check([m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant"], f"/save: {messages}")
    check(
        os.stat(path).st_mode & 0o777 == 0o600 and os.stat(path + ".session").st_mode & 0o777 == 0o600, "/save: others can read the files"
    )

    def evaluated(terminal):
        terminal.type("Once more.\r")
        terminal.prompt()
        terminal.type("/context\r")
        terminal.expect("were evaluated")
        terminal.prompt()
        return int(re.findall(rb"of which (\d+) were evaluated", terminal.raw)[-1])

    def shows(terminal, what):
        text = " ".join(" ".join(terminal.lines()).split())
        check(
            "> And of a dog?" in text and " ".join(messages[-1]["content"].split()) in text, f"{what}: the last turns are not shown: {text}"
        )

    for what, arguments, command in (("--load", ["--load", path], None), ("/load", [], f"/load {path}")):
        terminal = chat("--seed", "1", *arguments, model=DEMO)
        terminal.prompt()
        if command:
            terminal.type(command + "\r")
            terminal.expect("4 messages are loaded.")
            terminal.prompt()
        shows(terminal, what)
        check(evaluated(terminal) < 40, f"{what}: the cache is not used")
        terminal.leave()
    terminal = chat("--seed", "1", "--load", session, model=DEMO)
    terminal.prompt()
    check("dog" in " ".join(terminal.lines()), "--load of a session file: the last turns are not shown")
    check(evaluated(terminal) < 40, "--load of a session file: it is not used")
    terminal.type(f"/save {path}2\r")  # messages after tokens without
    terminal.expect("2 messages are saved.")
    terminal.prompt()
    terminal.leave()
    check(json.load(open(path + "2"))["loaded_tokens"] > 100, "/save: the number of tokens without messages")
    terminal = chat("--load", path + "2", model=DEMO)
    terminal.prompt()
    check(evaluated(terminal) < 40, "tokens without messages are not loaded again")
    terminal.leave()
    # Without its cache, or with that of another model, a conversation is evaluated again.
    os.remove(path + ".session")
    terminal = chat("--load", path, model=DEMO)
    terminal.prompt()
    check(evaluated(terminal) > 40, "a cache that is gone")
    terminal.leave()
    terminal = chat()
    terminal.prompt()
    terminal.type("a\r")
    terminal.prompt()
    terminal.type(f"/save {path}3\r")
    terminal.expect("saved")
    terminal.prompt()
    terminal.leave()
    os.replace(path + "3.session", path + ".session")
    terminal = chat("--load", path, model=DEMO)
    terminal.prompt()
    check("evaluated again" in " ".join(terminal.lines()), f"a cache of another model: {terminal.lines()}")
    check(evaluated(terminal) > 40, "a cache of another model is used")
    terminal.leave()


def main():
    os.environ["HOME"] = WORK
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    for name in sys.argv[5:] or tests:
        begin = time.monotonic()
        random.seed(name)
        tests[name]()
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    sys.exit(bool(failures))


main()
