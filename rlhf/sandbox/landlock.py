"""Landlock through ctypes: restricts a process to named files, without network or signals to other processes."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK, TRUNCATE = 1 << 6, 1 << 9, 1 << 11, 1 << 14
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
RIGHTS_SINCE = {1: (1 << 13) - 1, 2: 1 << 13, 3: TRUNCATE, 5: 1 << 15}
"""Access rights that a ruleset can restrict, with the ABI version that introduced them."""
TCP_SINCE, SCOPES_SINCE, TRUNCATE_SINCE = 4, 6, 3
TCP, SCOPES = 3, 3


def version() -> int:
    """Return the kernel's Landlock ABI version; 0 if it is not supported or disabled."""
    abi = ctypes.CDLL(None).syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
    return max(int(abi), 0)


def restrict(folder: str, readable: Iterable[str], devices: Iterable[str]) -> None:
    """Restrict this thread and its children to these files: all rights on `folder` except making devices and sockets,
    read and execute on `readable`, and use of `devices`, if they exist. Needs `no_new_privs`, or privileges. Raises
    `OSError`."""
    available = version()
    handled = sum(rights for since, rights in RIGHTS_SINCE.items() if since <= available)
    ruleset = _call(CREATE_RULESET, *_attributes(available, handled), 0)
    inside = handled & ~(MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK)
    for path, rights in [(folder, inside), *((p, READ) for p in readable), *((p, DEVICE) for p in devices)]:
        _allow(ruleset, path, rights & handled)
    _call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _attributes(available: int, handled: int) -> tuple[ctypes.Array[ctypes.c_char], ctypes.c_size_t]:
    """Return `struct landlock_ruleset_attr`, in the size that this kernel supports."""
    fields = [handled]
    fields += [TCP] if available >= TCP_SINCE else []
    fields += [SCOPES] if available >= SCOPES_SINCE else []
    packed = struct.pack(f"{len(fields)}Q", *fields)
    return ctypes.create_string_buffer(packed, len(packed)), ctypes.c_size_t(len(packed))


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        rights = rights if os.path.isdir(path) else rights & OF_A_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        _call(ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        message = f"step {number - CREATE_RULESET + 1} of 3 of Landlock was refused; the kernel may lack it"
        raise OSError(ctypes.get_errno(), message)
    return result
