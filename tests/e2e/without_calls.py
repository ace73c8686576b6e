#!/usr/bin/env python3
"""Run a program on a system that lacks something: a seccomp filter lets the calls fail as they do there.

usage: without_calls.py links|tmpfile PROGRAM [ARGUMENTS...]

links: symlink and symlinkat give EPERM, as on FAT and exFAT. tmpfile: open and openat with O_TMPFILE give EOPNOTSUPP, as on NFS.
Ends with status 77 where the machine is another or has no seccomp.
"""
import ctypes
import errno
import os
import platform
import struct
import sys

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CALLS = {"x86_64": {"symlink": 88, "symlinkat": 266, "open": 2, "openat": 257}, "aarch64": {"symlinkat": 36, "openat": 56}}
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
O_TMPFILE_BIT = 0o20000000  # without O_DIRECTORY, which other calls have
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2


def op(code, k, jump_true=0, jump_false=0):
    return struct.pack("<HBBI", code, jump_true, jump_false, k)


def filter_of(what, machine):
    calls = CALLS[machine]
    program = [op(LOAD, 4), op(EQUAL, AUDIT_ARCH[machine], 1, 0), op(RETURN, ALLOW), op(LOAD, 0)]
    for name, number in calls.items():
        if what == "links" and name.startswith("symlink"):
            program += [op(EQUAL, number, 0, 1), op(RETURN, ERRNO | errno.EPERM)]
        elif what == "tmpfile" and name.startswith("open"):
            flags = 16 + 8 * (2 if name == "openat" else 1)
            program += [op(EQUAL, number, 0, 4), op(LOAD, flags), op(ANY_BIT, O_TMPFILE_BIT, 0, 1),
                        op(RETURN, ERRNO | errno.EOPNOTSUPP), op(RETURN, ALLOW)]
    return program + [op(RETURN, ALLOW)]


def main():
    what, command = sys.argv[1], sys.argv[2:]
    machine = platform.machine()
    libc = ctypes.CDLL(None, use_errno=True)
    if machine not in CALLS or sys.platform != "linux":
        sys.exit(77)
    program = filter_of(what, machine)
    code = ctypes.create_string_buffer(b"".join(program))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    prog = Program(len(program), ctypes.addressof(code))
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(prog), 0, 0):
        sys.exit(77)
    os.execvp(command[0], command)


main()
