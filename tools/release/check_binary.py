#!/usr/bin/env python3
"""Says what a program or library of a release needs of the system, and refuses what an older system lacks.

check_binary.py POLICY FILE...    POLICY: glibc (2.28), static, macos (12.0, names of macos.symbols) or windows

No tool of the target is needed: ELF, Mach-O and PE are read here.
"""

import re
import struct
import sys
from pathlib import Path

GLIBC = (2, 28)
ELF_LIBRARIES = re.compile(r"lib(c\.so\.6|m\.so\.6|pthread\.so\.0|dl\.so\.2|rt\.so\.1|util\.so\.1|resolv\.so\.2)|ld-linux[-a-z0-9_]*\.so\.[12]")
MACOS = (12, 0)
ARM64 = 0x0100000C
MACOS_LIBRARIES = {"/usr/lib/libSystem.B.dylib"}
DLLS = {
    "advapi32", "bcrypt", "crypt32", "iphlpapi", "kernel32", "msvcrt", "ntdll", "ole32", "psapi", "secur32", "shell32", "shlwapi", "user32",
    "ws2_32", "winmm", "userenv", "dbghelp", "wldap32", "normaliz", "api-ms-win-core-synch-l1-2-0",
}  # fmt: skip


def text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


class Elf:
    """Sections of a 64-bit little-endian ELF file."""

    def __init__(self, data: bytes):
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit ELF file")
        self.data = data
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, _ = struct.unpack_from("<HHH", data, 58)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]

    def of_type(self, kind: int):
        return [s for s in self.sections if s[1] == kind]

    def strings_of(self, section) -> int:
        return self.sections[section[6]][4]

    def needed(self) -> list[str]:
        names = []
        for s in self.of_type(6):  # dynamic
            for at in range(s[4], s[4] + s[5], 16):
                tag, value = struct.unpack_from("<QQ", self.data, at)
                if tag == 1:
                    names.append(text(self.data, self.strings_of(s) + value))
        return names

    def versions(self) -> list[str]:
        names = []
        for s in self.of_type(0x6FFFFFFE):  # versions that are needed
            at = s[4]
            while True:
                _, count, _, first, after = struct.unpack_from("<HHIII", self.data, at)
                entry = at + first
                for _ in range(count):
                    _, _, _, name, following = struct.unpack_from("<IHHII", self.data, entry)
                    names.append(text(self.data, self.strings_of(s) + name))
                    entry += following
                if not after:
                    break
                at += after
        return names

    def has_interpreter(self) -> bool:
        (table,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        return any(struct.unpack_from("<I", self.data, table + i * size)[0] == 3 for i in range(count))


def check_glibc(data: bytes) -> list[str]:
    elf = Elf(data)
    wrong = [f"needs {name}" for name in elf.needed() if not ELF_LIBRARIES.fullmatch(name)]
    for name in elf.versions():
        number = re.fullmatch(r"GLIBC_([0-9]+)\.([0-9]+)(?:\.[0-9]+)?", name)
        if not number or (int(number[1]), int(number[2])) > GLIBC:
            wrong.append(f"needs {name}, expected at most GLIBC_{GLIBC[0]}.{GLIBC[1]}")
    return wrong


def check_static(data: bytes) -> list[str]:
    elf = Elf(data)
    return [f"needs {name}" for name in elf.needed()] + ["needs a program loader"] * elf.has_interpreter()


def commands(data: bytes):
    """Load commands of a Mach-O file: kind, offset."""
    if data[:4] != b"\xcf\xfa\xed\xfe":
        raise ValueError("not a 64-bit Mach-O file")
    (count,) = struct.unpack_from("<I", data, 16)
    at = 32
    for _ in range(count):
        kind, size = struct.unpack_from("<II", data, at)
        yield kind, at
        at += size


def undefined(data: bytes, at: int) -> list[str]:
    symbols, count, strings = struct.unpack_from("<III", data, at + 8)
    names = []
    for i in range(count):
        name, kind = struct.unpack_from("<IB", data, symbols + 16 * i)
        if kind & 0xE0 == 0 and kind & 0x0E == 0 and kind & 1:
            names.append(text(data, strings + name))
    return names


def check_macos(data: bytes) -> list[str]:
    allowed = set((Path(__file__).parent / "macos.symbols").read_text().split())
    wrong = []
    minimum = None
    signed = False
    for kind, at in commands(data):
        signed |= kind == 0x1D
        if kind in (0xC, 0x80000018, 0x8000001F):  # libraries: loaded, weak, exported again
            library = text(data, at + struct.unpack_from("<I", data, at + 8)[0])
            if library not in MACOS_LIBRARIES:
                wrong.append(f"needs {library}")
        elif kind == 0x32:  # the system that it is built for
            (version,) = struct.unpack_from("<I", data, at + 12)
            minimum = (version >> 16, version >> 8 & 255)
        elif kind == 2:  # symbols
            wrong += [f"needs {name}, which macos.symbols does not have" for name in undefined(data, at) if name not in allowed]
    if minimum is None or minimum > MACOS:
        wrong.append(f"is for macOS {minimum}, expected {MACOS}")
    if struct.unpack_from("<I", data, 4)[0] == ARM64 and not signed:
        wrong.append("has no signature, without which macOS loads no code for ARM")
    return wrong


def check_windows(data: bytes) -> list[str]:
    (header,) = struct.unpack_from("<I", data, 60)
    if data[:2] != b"MZ" or data[header : header + 4] != b"PE\0\0":
        raise ValueError("not a PE file")
    n_sections, size = struct.unpack_from("<H12xH", data, header + 6)
    (imports,) = struct.unpack_from("<I", data, header + 24 + 120)
    sections = [struct.unpack_from("<8xIIII", data, header + 24 + size + 40 * i) for i in range(n_sections)]

    def at(address: int) -> int:
        for _, start, length, offset in sections:
            if start <= address < start + length:
                return address - start + offset
        raise ValueError("an import outside of all sections")

    wrong = []
    entry = at(imports)
    while (name := struct.unpack_from("<12xI", data, entry)[0]) != 0:
        library = text(data, at(name))
        if library.lower().removesuffix(".dll") not in DLLS:
            wrong.append(f"needs {library}")
        entry += 20
    return wrong


POLICIES = {"glibc": check_glibc, "static": check_static, "macos": check_macos, "windows": check_windows}


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] not in POLICIES:
        print(__doc__, file=sys.stderr)
        return 2
    failed = False
    for path in sys.argv[2:]:
        try:
            wrong = POLICIES[sys.argv[1]](Path(path).read_bytes())
        except (ValueError, struct.error, IndexError) as error:
            wrong = [str(error)]
        for line in wrong:
            print(f"{path}: {line}")
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
