"""The process of the tests: it starts the code in another, runs each test here, and prints a line about each.

Read from standard input: `nonce`, `code` and `tests`, as JSON. A line is `nonce index passed|failed detail`.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import importlib
import json
import os
import sys
from typing import Any

from rlhf.reward.checking.remote import Code

PR_SET_DUMPABLE = 4


def main() -> None:
    """Judge; always ends with code 0, unless something kills it."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)  # the code has this user's rights: it may not look in here
    asked = json.load(sys.stdin)
    tests = [ast.parse(test) for test in asked["tests"]]
    code = Code(asked["code"])
    sys.path[:] = [folder for folder in sys.path if folder and not folder.startswith(os.getcwd())]
    names, refusal = prepared(code, tests)
    for index, test in enumerate(tests):
        complaint = refusal or judged(test, names, code)
        print(asked["nonce"], index, "failed" if complaint else "passed", complaint, flush=True)
    os._exit(0)


def prepared(code: Code, tests: list[ast.Module]) -> tuple[dict[str, Any], str]:
    """The names that tests may use; or why there are none."""
    try:
        found = code.names()
    except Exception as error:  # noqa: BLE001 - whatever the code raises
        return {}, in_a_line(error)
    real = {module: importlib.import_module(module) for module in modules(tests)}
    own = {name: value for name, value in found.items() if not hasattr(builtins, name)}
    return {"__name__": "tests"} | own | real, ""


def modules(tests: list[ast.Module]) -> set[str]:
    """Standard modules whose attributes the tests use: the real ones are meant, whatever the code calls so."""
    used = {
        node.value.id
        for test in tests
        for node in ast.walk(test)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return used & (set(sys.stdlib_module_names) - {"this", "antigravity"})


def judged(test: ast.Module, names: dict[str, Any], code: Code) -> str:
    """Why the test fails; empty when it passes. Code whose process has ended passes nothing."""
    try:
        exec(compile(test, "test.py", "exec"), names)
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is a failure of the code
        return in_a_line(error)
    return "the code ended its process" if code.ended else ""


def in_a_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
