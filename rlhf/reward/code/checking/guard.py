"""Refuse, in the process of the tests, whatever would run what the code answers: text, bytes, commands.

Python reports such operations to audit hooks (PEP 578), by whatever name or library they are reached, and a hook cannot
be removed. The code's own text runs in another process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

MAKE = (
    *("code.__new__", "function.__new__", "ctypes.", "pickle.find_class", "cpython.", "sqlite3.", "gc."),
    *("sys.setprofile", "sys.settrace", "os.listdir", "os.remove", "os.rename", "shutil.", "socket.connect"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "subprocess."),
    "builtins.input",
)
"""The events, or their beginnings, that make code, start a process, or leave this one."""
COMPILE_CHECKED_NAMES = ("ast", "collections", "dataclasses")
LOADS = "importlib._bootstrap"
"""Modules of the library that compile and run none of it, or classes of identifiers that they have checked; and what
Python loads."""


def guard(stop: Callable[[str], NoReturn]) -> None:
    """From here on `stop` is called when something runs text, bytes or a command."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "compile":
            refused = given[0] is not None and not _is_checked(sys._getframe(1).f_globals.get("__name__"))
        elif event == "open":
            refused = sys._getframe(1).f_globals.get("__name__") == "tests"
        else:
            refused = event.startswith(MAKE)
        if refused:
            stop(f"the tests run what the code answers, or leave their process ({event})")

    sys.addaudithook(hook)


def _is_checked(module: Any) -> bool:
    return module in COMPILE_CHECKED_NAMES or str(module).startswith(LOADS)
