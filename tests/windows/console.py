"""quern chat on a console of Windows, which is Wine's: a pseudo-terminal on which this script types, and helper.exe for what it cannot.

    console.py QUERN_EXE HELPER_EXE PARROT DEMO_MODEL WORK_FOLDER

Wine's console knows no sequences: it puts their bytes into its cells, and what is drawn over them cuts them. So the screen is not looked at
(tests/e2e/chat_terminal.py does, and the drawing is the same code), but texts that are drawn, and messages as they are saved.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

QUERN, HELPER, PARROT, DEMO, WORK = sys.argv[1:6]
SECONDS = float(os.environ.get("QN_TERMINAL_SECONDS", 60))
ANSWER = "Hé 世"
LEFT_ALT, CONTROL = 2, 8  # bits of wincon.h
END, HOME, LEFT, DELETE = 0x23, 0x24, 0x25, 0x2E  # keys of winuser.h
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


class Console:
    def __init__(self, *arguments, model=PARROT, columns=400, run=False):
        self.raw, self.seen = b"", 0
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            # Wine sets modes when it first reads: what is typed until then is not echoed or taken for a line either. Ctrl-Z is a key, and
            # Ctrl-C, whose signal is Wine's Ctrl-C, drops nothing that was typed.
            modes = termios.tcgetattr(0)
            modes[0] &= ~termios.ICRNL
            modes[3] = modes[3] & ~(termios.ICANON | termios.ECHO | termios.IEXTEN) | termios.NOFLSH
            modes[6][termios.VSUSP] = b"\0"
            termios.tcsetattr(0, termios.TCSANOW, modes)
            program = [HELPER, "run", QUERN] if run else [QUERN]
            os.environ.update(QN_DEVICE="cpu", LC_ALL="C.UTF-8")
            os.execvp("wine", ["wine", *program, "chat", "-m", model, "-t", "1", *arguments])
        self.prompt()

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        self.raw += data.replace(b"\x1b[?25l", b"").replace(b"\x1b[?25h", b"")  # Wine hides the cursor while it draws
        return bool(data)

    def expect(self, text):
        """Waits until a text is drawn after those expected before."""
        data, end = text.encode(), time.monotonic() + SECONDS
        # Of spaces Wine draws the place alone.
        pattern = re.compile(re.escape(data).replace(rb"\ ", rb"(?: |(?:\x1b\[K)?\x1b\[1C)"))
        while not pattern.search(self.raw, self.seen):
            if time.monotonic() > end or not self.read(0.05):
                check(pattern.search(self.raw, self.seen), f"{text!r} does not come, but {self.raw[self.seen :][-400:]}")
                return
        self.seen = pattern.search(self.raw, self.seen).end()

    def prompt(self):
        self.expect("\x1b[?2004h")
        self.expect("> ")

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def send(self, *commands):
        sent = subprocess.run(["wine", HELPER, "send", "quern.exe", *commands], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
        check(sent.returncode == 0, f"helper.exe send {commands}: {sent.stdout}")

    def message(self, text):
        """Sends what was typed; it is this."""
        path = os.path.join(WORK, "message.json")
        self.type("\r")
        self.expect(ANSWER)
        self.prompt()
        if os.path.exists(path):
            os.remove(path)
        self.type(f"/save {path}\r")
        self.expect("saved")
        self.prompt()
        with open(path, encoding="utf-8") as file:
            found = [m["content"] for m in json.load(file)["messages"] if m["role"] == "user"][-1]
        check(found == text, f"the message is {found!r}, not {text!r}")

    def finish(self, what):
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while select.select([self.fd], [], [], 0)[0] and self.read(0):
                    pass
                os.close(self.fd)
                return status
        check(False, f"{what}: it does not end: {self.raw[self.seen :]}")
        return -1

    def leave(self):
        self.type("\x05\x15/exit\r")
        check(self.finish("/exit") == 0, "/exit: status")


def units(text):
    data = text.encode("utf-16-le")
    return ",".join(f"{data[i] | data[i + 1] << 8:x}" for i in range(0, len(data), 2))


def key(code, state=0, n=1):
    return ("key", f"{code},{state},{n}")


def test_keys():
    console = Console()
    console.type("one twp\x1b[D\x1b[3~o\x01X\x1b[C\x1b[C-\x05!\x7f?")
    console.expect("Xon-e two?")
    console.message("Xon-e two?")
    # Words, lines of one message, the history, search in it, and completion.
    console.type("a bcd\x1b[1;5De\x1bff\x1b\rg\x17h")
    console.message("a ebcdf\nh")
    console.type("\x1b[A" * 5)  # with those of /save, and the lines of one message
    console.expect("Xon-e two?")
    console.message("Xon-e two?")
    console.type("\x12bcd\x05")
    console.message("a ebcdf\nh")
    console.type("/sy\tBe kind.\r")
    console.prompt()
    console.type("ä世\x7féß\x1b[Du")
    console.message("äéuß")
    # As Windows sends them: keys by number, two units of a character, Alt and digits, a paste between marks, an answer to no question.
    console.send("units", units("😀a"), "units", units("b🙂"), *key(LEFT, n=2), "units", units("é"), "number", "20ac")
    console.expect("€b")
    console.send(*key(HOME), *key(DELETE), *key(END), "units", units("\x1b[D!"), "units", units("\x1b[1;1R"))
    console.message("aé€b!🙂")
    console.send("units", units("x\x1b[200~p\rq😀\x1b[201~y"))
    console.message("xp\nq😀y")
    console.leave()


def test_interrupted():
    """Ctrl-C drops the line, and ends an answer, not the program; what was typed during the answer stays."""
    console = Console("--seed", "1", model=DEMO, run=True)
    console.type("dropped\x03")
    console.prompt()
    console.type("Tell me a long story about a dog.\r")
    console.expect("\x1b[?2004l")
    for _ in range(4):
        console.expect(" ")
    console.type("kept")
    console.type("\x03")
    console.expect("kept")
    console.type("\x15\x04")
    console.expect("status 0, modes same")
    check(console.finish("Ctrl-D") == 0, "Ctrl-D: status")


def test_end():
    """Ctrl-Z ends as Ctrl-D does, on an empty line."""
    console = Console(run=True)
    console.type("x\x01\x1a\x1a")
    console.expect("status 0, modes same")
    check(console.finish("Ctrl-Z") == 0, "Ctrl-Z: status")


def test_resized():
    console = Console()
    text = "".join(chr(ord("a") + i % 26) for i in range(150))
    console.type(text)
    console.expect(text)
    console.send("size", "100,40")
    console.expect("\n")
    console.expect(text[98:])
    console.message(text)
    console.leave()


def test_history():
    """It outlives the program, in the user's folder."""
    console = Console()
    console.type("remember größe\r")
    console.expect(ANSWER)
    console.prompt()
    console.leave()
    console = Console()
    console.type("\x1b[A\x1b[A")
    console.message("remember größe")
    console.leave()


def main():
    tests = {name: test for name, test in globals().items() if name.startswith("test_")}
    for name in sys.argv[6:] or tests:
        begin = time.monotonic()
        tests[name]()
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    sys.exit(bool(failures))


main()
