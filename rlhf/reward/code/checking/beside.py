"""Tests in the code's own process, as in one plain Python. The code can replace what they use: that they pass proves
nothing alone, that they fail does.

Input on standard input, as JSON: `key`, `code`, `tests`, `setup`, `names` (those that come from the code), `tested`
(those that do even where the set-up has them) and `together` (the tests share the code's names, instead of looking
`names` up there). Output: `verdicts.py`.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from types import ModuleType
from typing import Any

from rlhf.reward.code.checking.importing import (
    SETUP_FAILS,
    ModuleOfTests,
    missing,
    modules,
    read_by_classes,
    tear_down_after_failures,
)
from rlhf.reward.code.checking.verdicts import Verdicts, in_a_line


class NamesBeside(dict[str, Any]):
    """The names of the tests. What nothing but the code has bound, and what it has bound last, is looked up there at
    each use; Python's own stands in for no name that is `listed` as the code's."""

    def __init__(self, of_code: dict[str, Any]) -> None:
        super().__init__(__name__="tests", __builtins__=__builtins__)
        self._of_code = of_code
        self.listed: frozenset[str] = frozenset()

    def __missing__(self, name: str) -> Any:
        if name in self._of_code:
            return self._of_code[name]
        if name in self.listed:
            raise NameError(f"name {name!r} is not defined")
        raise KeyError(name)


def beside_main() -> None:
    """Run the tests; always exits with code 0, unless the process is killed."""
    asked = json.load(sys.stdin)
    verdicts = Verdicts()
    solution = sys.modules["solution"] = ModuleType("solution")
    of_code = vars(solution)
    names = of_code if asked["together"] else NamesBeside(of_code)
    sys.modules["tests"] = ModuleOfTests(names)  # type: ignore[assignment]
    tests = [ast.parse(test) for test in asked["tests"]]
    complaint = missing(tests) or _prepare(names, of_code, asked, tests)
    for index, test in enumerate(asked["tests"]):
        verdicts.write(asked["key"], index, complaint or _why_it_fails(test, names))
    os._exit(0)


def _prepare(names: dict[str, Any], of_code: dict[str, Any], asked: dict[str, Any], tests: list[ast.Module]) -> str:
    try:
        real = modules([*tests, ast.parse(asked["setup"])])
        names.update(real)
        tear_down_after_failures()
        exec(compile(asked["setup"], "setup.py", "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001 - whatever the task's set-up raises
        return f"{SETUP_FAILS}: {in_a_line(error)}"
    for name in set(asked["tested"]) - set(real):
        names.pop(name, None)
    try:
        exec(compile(asked["code"], "solution.py", "exec", dont_inherit=True), of_code)
    except BaseException as error:  # noqa: BLE001 - whatever the code raises
        return in_a_line(error)
    if isinstance(names, NamesBeside):
        names.listed = frozenset(asked["names"])
        bound = {name for name in of_code if not name.startswith("__")}
        for name in bound & set(names):
            del names[name]
        names.update({name: of_code[name] for name in bound & read_by_classes(tests)})
    return ""


def _why_it_fails(test: str, names: dict[str, Any]) -> str:
    try:
        exec(compile(test, "test.py", "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is a failure of the code
        return in_a_line(error) or type(error).__name__
    return ""
