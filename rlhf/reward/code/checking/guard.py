"""Refuse, in the process of the tests, whatever would run what the code answers: text, bytes, commands.

Python reports such operations to audit hooks (PEP 578), by whatever name or library they are reached, and a hook cannot
be removed. The code's own text runs in another process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Set
from types import FrameType
from typing import Any, NoReturn

MAKE = (
    *("code.__new__", "function.__new__", "ctypes.", "pickle.find_class", "cpython.", "sqlite3.", "gc."),
    *("sys.setprofile", "sys.settrace", "os.remove", "os.rename", "shutil.", "socket.connect"),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "subprocess."),
    "builtins.input",
)
"""The events, or their beginnings, that make code, start a process, or leave this one."""
PARSE = ("ast", "collections")
"""Modules of the library that compile and run none of it, or only identifiers that they have checked."""
LOADS = "importlib._bootstrap"


def guard(stop: Callable[[str], NoReturn], annotations: Set[str]) -> None:
    """From here on `stop` is called when something runs text, bytes or a command, but for these texts of the tests' own
    by which `typing` names types."""

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "compile":
            refused = given[0] is not None and not _is_harmless(sys._getframe(1), annotations)
        elif event == "open":
            refused = sys._getframe(1).f_globals.get("__name__") == "tests"
        else:
            refused = event.startswith(MAKE)
        if refused:
            stop(f"the tests run what the code answers, or leave their process ({event})")

    sys.addaudithook(hook)


def _is_harmless(frame: FrameType, annotations: Set[str]) -> bool:
    """Whether the library compiles for itself, and no text that it has from elsewhere."""
    module = str(frame.f_globals.get("__name__"))
    if module in PARSE or module.startswith(LOADS):
        return True
    if module == "typing":
        return type(text := frame.f_locals.get("arg")) is str and text in annotations
    of_class: FrameType | None = frame if module == "dataclasses" else None
    while of_class and of_class.f_code is not vars(sys.modules["dataclasses"])["_process_class"].__code__:
        of_class = of_class.f_back
    fields = of_class.f_locals["fields"] if of_class is not None else ("",)
    return all(type(name) is str and name.isidentifier() for name in fields)  # a kind of a text has two
