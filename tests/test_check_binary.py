#!/usr/bin/env python3
"""tools/release/check_binary.py on files of a few bytes, made here: what each policy accepts and refuses. test_check_binary.py FOLDER_OF_IT"""

import struct
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import check_binary  # noqa: E402


def elf(needed: list[str], versions: list[str], interpreter: bool = False) -> bytes:
    """An ELF file of three sections: strings, dynamic entries, versions that are needed of one library."""
    strings = b"\0"
    places = {}
    for name in [*needed, *versions]:
        places[name] = len(strings)
        strings += name.encode() + b"\0"
    dynamic = b"".join(struct.pack("<QQ", 1, places[n]) for n in needed) + struct.pack("<QQ", 0, 0)
    entries = b"".join(
        struct.pack("<IHHII", 0, 0, 0, places[n], 16 if i + 1 < len(versions) else 0) for i, n in enumerate(versions)
    )
    need = struct.pack("<HHIII", 1, len(versions), 0, 16, 0) + entries if versions else b""
    program = 64
    body = program + 56
    data = strings + dynamic + need
    table = body + len(data)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, program, table, 0, 64, 56, 1, 64, 4 if versions else 3, 0)
    segment = struct.pack("<IIQQQQQQ", 3 if interpreter else 1, 0, 0, 0, 0, 0, 0, 0)

    def section(kind: int, at: int, size: int) -> bytes:
        return struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, body + at, size, 1, 0, 0, 0)

    sections = section(0, 0, 0) + section(3, 0, len(strings)) + section(6, len(strings), len(dynamic))
    if versions:
        sections += section(0x6FFFFFFE, len(strings) + len(dynamic), len(need))
    return header + segment + data + sections


def macho(libraries: list[str], symbols: list[str], minimum: tuple[int, int], processor: int = 0x01000007) -> bytes:
    commands = b""
    for name in libraries:
        path = name.encode() + b"\0"
        path += b"\0" * (-len(path) % 8)
        commands += struct.pack("<IIIIII", 0xC, 24 + len(path), 24, 0, 0, 0) + path
    commands += struct.pack("<IIIIII", 0x32, 24, 1, minimum[0] << 16 | minimum[1] << 8, 0, 0)
    at = 32 + len(commands) + 24
    strings = b"\0"
    table = b""
    for name in symbols:
        table += struct.pack("<IBBHQ", len(strings), 1, 0, 0, 0)
        strings += name.encode() + b"\0"
    commands += struct.pack("<IIIIII", 2, 24, at, len(symbols), at + len(table), len(strings))
    header = struct.pack("<IIIIIIII", 0xFEEDFACF, processor, 0, 2, len(libraries) + 2, len(commands), 0, 0)
    return header + commands + table + strings


def pe(libraries: list[str]) -> bytes:
    """A PE file of one section, at address 4096, that holds imports and names."""
    start = 64 + 24 + 240 + 40
    names = b""
    imports = b""
    first = 20 * (len(libraries) + 1)
    for name in libraries:
        imports += struct.pack("<IIIII", 0, 0, 0, 4096 + first + len(names), 0)
        names += name.encode() + b"\0"
    content = imports + b"\0" * 20 + names
    data = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64) + b"PE\0\0"
    data += struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 240, 0)
    data += b"\0" * 120 + struct.pack("<II", 4096, len(imports)) + b"\0" * 112
    data += b".rdata\0\0" + struct.pack("<IIII", len(content), 4096, len(content), start) + b"\0" * 16
    return data + content


def expect(policy: str, data: bytes, *parts: str) -> None:
    wrong = check_binary.POLICIES[policy](data)
    assert len(wrong) == len(parts) and all(p in w for p, w in zip(parts, wrong)), (policy, parts, wrong)


expect("glibc", elf(["libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"], ["GLIBC_2.2.5", "GLIBC_2.28"], True))
expect("glibc", elf(["libc.so.6"], ["GLIBC_2.29", "GLIBC_2.4"]), "GLIBC_2.29")
expect("glibc", elf(["libc.so.6"], ["GLIBC_ABI_DT_RELR"]), "GLIBC_ABI_DT_RELR")
expect("glibc", elf(["libcurl.so.4", "libc.so.6"], []), "libcurl.so.4")
expect("static", elf([], []))
expect("static", elf(["libc.so.6"], [], True), "libc.so.6", "loader")
system = "/usr/lib/libSystem.B.dylib"
known = (Path(sys.argv[1]) / "macos.symbols").read_text().split()
assert known == sorted(set(known)), "macos.symbols is not sorted"
expect("macos", macho([system], ["_printf", "_pthread_create"], (12, 0)))
expect("macos", macho([system], ["_pipe2", "_os_sync_wait_on_address"], (12, 0)), "_pipe2", "_os_sync_wait_on_address")
expect("macos", macho([system, "/usr/lib/libedit.3.dylib"], [], (12, 0)), "libedit")
expect("macos", macho([system], [], (13, 0)), "(13, 0)")
expect("macos", macho([system], [], (12, 0), 0x0100000C), "signature")
expect("windows", pe(["KERNEL32.dll", "bcrypt.dll"]))
expect("windows", pe(["KERNEL32.dll", "libgcc_s_seh-1.dll"]), "libgcc_s_seh-1.dll")
for policy in check_binary.POLICIES:
    try:
        check_binary.POLICIES[policy](b"\0" * 200)
        raise AssertionError(f"{policy} accepted a file of zeros")
    except ValueError:
        pass
