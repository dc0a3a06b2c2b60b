"""The process of the tests: it parts with that of the code, runs each test here, and prints a line about each.

Read from standard input: `nonce`, `code`, `tests`, `trusting` and `entry_point`, as JSON. A line is
`nonce index passed|failed detail`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any

from rlhf.reward.checking.host import be_host
from rlhf.reward.checking.link import NEEDS_TRUST, FunctionOfTheCode, Link, ObjectOfTheCode

PR_SET_DUMPABLE = 4
ABOUT_OBJECTS = (
    *(ObjectOfTheCode.__name__, FunctionOfTheCode.__name__, "do not inherit from BaseException"),
    *(f"'{kind}' object has no attribute" for kind in ("tuple", "dict", "int", "str", "list")),
)
"""What Python says of operations that it does not know, of `except` with a class of the code, and of what crossed as
the plain value that it is a kind of: a named tuple, say."""
UNWANTED = {"this", "antigravity"}
"""Modules that do something when they are imported."""


def main() -> None:
    """Judge; always ends with code 0, unless something kills it."""
    link = parted()
    asked = json.load(sys.stdin)
    verdicts = closed_in()
    tests = [ast.parse(test) for test in asked["tests"]]
    real = modules(tests)
    names, refusal = prepared(link, asked, tests, real)
    for index, test in enumerate(tests):
        complaint = refusal or judged(test, names, link, trusting=asked["trusting"])
        line = f"{asked['nonce']} {index} {'failed' if complaint else 'passed'} {complaint}"
        verdicts.write(line.encode("ascii", "backslashreplace") + b"\n")
    os._exit(0)


def parted() -> Link:
    """Start the process of the code, before anything is known that it must not know: it is a copy of this one.

    Where the sandbox lent two users, real and effective, the code becomes the latter, whose files these are, and the
    tests the former. It cannot look into this process either way, nor signal it where there are two.
    """
    libc = ctypes.CDLL(None)
    of_tests, of_code, _ = os.getresuid()
    (read_requests, requests), (answers, write_answers) = os.pipe(), os.pipe()
    libc.prctl(PR_SET_DUMPABLE, 0)
    if os.fork() == 0:
        libc.prctl(PR_SET_DUMPABLE, 1)
        be_host(read_requests, write_answers, of_code)
    os.setresuid(of_tests, of_tests, of_tests)
    libc.prctl(PR_SET_DUMPABLE, 0)  # changing users may undo it
    os.close(read_requests)
    os.close(write_answers)
    return Link(requests, answers)


def closed_in() -> Any:
    """What the tests do reaches neither the code's files nor the verdicts, whose stream this returns."""
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    verdicts = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    folder = os.getcwd()
    sys.path[:] = [path for path in sys.path if os.path.isabs(path) and not path.startswith(folder)]
    os.chdir("/")
    return verdicts


def prepared(
    link: Link, asked: dict[str, Any], tests: list[ast.Module], real: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """The names that tests may use; or why there are none. What Python itself calls so is not the code's, except for
    the function that is to be tested."""
    wanted = [] if asked["trusting"] else [name for name in used(tests) if not name.startswith("__")]
    own = [name for name in wanted if not hasattr(builtins, name) or name == asked["entry_point"]]
    try:
        found = link.run(asked["code"], own)
    except Exception as error:  # noqa: BLE001 - whatever the code raises
        return {}, in_a_line(error)
    return {**found, **real, "__name__": "tests", "__builtins__": builtins}, ""


def used(tests: list[ast.Module]) -> list[str]:
    return sorted({node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)})


def modules(tests: list[ast.Module]) -> dict[str, Any]:
    """Standard modules whose attributes the tests use: the real ones are meant, whatever the code calls so. They and
    those that tests import are loaded before the code runs, and never on its word."""
    nodes = [node for test in tests for node in ast.walk(test)]
    bases = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    standard = bases & set(sys.stdlib_module_names) - UNWANTED
    for name in imported - UNWANTED:
        with contextlib.suppress(Exception):  # the test will say so
            importlib.import_module(name)
    return {name: importlib.import_module(name) for name in standard}


def judged(test: ast.Module, names: dict[str, Any], link: Link, *, trusting: bool) -> str:
    """Why the test fails; empty when it passes. Code whose process has ended passes nothing."""
    link.objection = ""
    try:
        if trusting:
            link.trust(ast.unparse(test))
        else:
            exec(compile(test, "test.py", "exec"), names)
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is a failure of the code
        complaint = in_a_line(error)
        about_objects = any(words in complaint for words in ABOUT_OBJECTS)
        return link.objection or (f"{complaint}; {NEEDS_TRUST}" if about_objects else complaint)
    return link.objection or link.ended


def in_a_line(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an object of the code is part of it, and is not shown
        text = "about an object of the code"
    line = " ".join(f"{type(error).__name__}: {text}".split())[:300]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
