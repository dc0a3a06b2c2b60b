"""The process of the tests: it forks the process of the code, runs each test here, and prints one result line for each.

Input on standard input, as JSON: `key`, `code`, `tests`, `trusting`, `names` (those that come from the code), `tested`
(those that do even where the set-up has them) and `setup` (run before the tests). A line is `signature index
passed|failed detail`: whoever reads the lines cannot write others, since the key is in none of them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import ctypes
import hashlib
import importlib.util
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from rlhf.reward.code.checking.complaints import (
    args_of,
    handled,
    in_a_line,
    is_about_an_object,
    look_at_what_is_awaited,
)
from rlhf.reward.code.checking.completeness import ENTERED, RESULT, Entries
from rlhf.reward.code.checking.guard import guard, reaching, run_in, texts_in
from rlhf.reward.code.checking.host import be_host
from rlhf.reward.code.checking.link import NEEDS_TRUST, Link
from rlhf.reward.code.checking.questions import matched, own_or_type_of, type_of
from rlhf.reward.code.checking.rewrite import (
    ARGS_OF,
    ASSERTED,
    CHECKED,
    GUARDED,
    HANDLED,
    MATCHED,
    READ,
    SWALLOWED,
    TYPE,
    TYPE_OF,
    Rewrite,
    is_left_undecided,
    names_in,
)
from rlhf.reward.code.checking.stand_ins import CALLABLE, STAND_INS, Asked, KindOfStandIn
from rlhf.reward.code.checking.values import VIEWED, named

PR_SET_DUMPABLE = 4
NEVER_ASKED = "the test never asks the code for anything"
NEVER_ASSERTED = "none of the asserts of the test was run"
CAUGHT = "an assert of the test fails, and the failure is caught"
SETUP_FAILS = "the set-up fails"
DEEPEST_TEXT = 10_000
"""Recursion limit while tests are rewritten: each level of their syntax takes several calls."""
OF_THE_MODULE = ("__doc__", "__dict__", "__dir__", "__all__", "__version__", "__author__", "__annotations__")
"""What the module object of the tests' process has, or has not, by itself."""
UNWANTED = {"this", "antigravity"}
"""Modules with side effects when imported."""


def judge_main() -> None:
    """Run the tests; always exits with code 0, unless the process is killed."""
    link = parted()
    asked = json.load(sys.stdin)
    verdicts = closed_in()
    tests, setup = [ast.parse(test) for test in asked["tests"]], ast.parse(asked["setup"])
    entries = Entries(tests)
    rewrite = None if asked["trusting"] else Rewrite([*tests, setup], asked["names"], entries.marks)
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST_TEXT)
    codes = [compiled(test, rewrite) for test in tests]  # before nothing may be compiled any more
    sys.setrecursionlimit(usual)
    names, refusal = prepared(link, asked, tests, setup, rewrite)
    names[ENTERED] = entries.entered
    reach, passed = Reach(tests), 0
    for index, (test, code) in enumerate(zip(tests, codes, strict=True)):
        complaint = refusal or why_test_fails(test, code, names, link, reach)
        passed += not complaint
        if passed == len(tests) and rewrite and (left := entries.left(names)):
            complaint = f"{left}, which decides something, has never run"
        told = " ".join(f"{index} {'failed' if complaint else 'passed'} {complaint}".split())
        line = told.encode("ascii", "backslashreplace").decode()
        verdicts.write(f"{signature(asked['key'], line)} {line}\n".encode())
    os._exit(0)


def signature(key: str, line: str) -> str:
    """The keyed hash of a result line. It includes the index, so a line cannot be reused for another test."""
    return hashlib.blake2b(line.encode(errors="replace"), key=bytes.fromhex(key), digest_size=16).hexdigest()


def parted() -> Link:
    """Fork the process of the code, before this process reads anything secret: the child is a copy of this process.

    Where the sandbox granted two users, real and effective, the code becomes the effective user, who owns these files,
    and the tests the real one. In both cases the code cannot read this process's memory; with two users it also cannot
    signal it.
    """
    libc = ctypes.CDLL(None)
    of_tests, of_code, _ = os.getresuid()
    (read_requests, requests), (answers, write_answers) = os.pipe(), os.pipe()
    if os.fork() == 0:
        be_host(read_requests, write_answers, of_code)
    os.setresuid(of_tests, of_tests, of_tests)
    libc.prctl(PR_SET_DUMPABLE, 0)  # a sandbox that refuses it fails the proof at the start of the reward
    os.close(read_requests)
    os.close(write_answers)
    return Link(requests, answers)


def closed_in() -> Any:
    """Isolate the tests from the code's files and from the result stream, which this function returns."""
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    threading.excepthook = lambda _: None  # it would read and parse source files
    sys.unraisablehook = lambda _: None  # so would it
    verdicts = os.fdopen(os.dup(1), "wb", buffering=0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    folder = os.getcwd()
    sys.path[:] = [path for path in sys.path if os.path.isabs(path) and not path.startswith(folder)]
    os.chdir("/")
    return verdicts


class Names(dict[str, Any]):
    """The names available to tests. Names of the code are looked up at each use, so tests see their current values;
    names that the tests bind themselves take precedence."""

    def __init__(self, link: Link, given: dict[str, Any]) -> None:
        counting = {ASSERTED: self._assert, CHECKED: self._checking, GUARDED: self._guard, SWALLOWED: self._swallow}
        counting["print"] = print_nowhere
        asking = {TYPE_OF: type_of, TYPE: own_or_type_of, MATCHED: matched, ARGS_OF: args_of, HANDLED: handled}
        ours = asking | counting | {READ: self.__getitem__}
        super().__init__(given, __name__="tests", __builtins__=builtins, **ours)
        self.asserted = self.failed = 0
        self.of_code: frozenset[str] = frozenset()
        self._link = link
        self._functions: dict[str, Any] = {}

    def __missing__(self, name: str) -> Any:
        if name not in self.of_code:
            raise KeyError(name)
        try:
            value = self._link.name(name)
        except KeyError:  # Python's own function of that name is not the code's
            raise NameError(f"name {name!r} is not defined") from None
        if type(value) in CALLABLE:
            self[name] = self._functions[name] = value
        return value

    def _assert(self, claim: Any) -> bool:
        self.asserted += 1
        holds = bool(claim)
        self.failed += not holds
        return holds

    def _checking(self, method: Any) -> Any:
        """A method of `unittest`, or a function of its kind, that counts like an assert."""

        def checked(*arguments: Any, **named: Any) -> Any:
            self.asserted += 1
            try:
                return method(*arguments, **named)
            except AssertionError:
                of_code = type(method) in STAND_INS.values()  # a test may await what it raises
                self.failed += not of_code
                raise

        return checked

    def _swallow(self) -> None:
        self.failed += 1

    def _guard(self, condition: Any) -> Any:
        """A condition under which a test raises: it has been decided."""
        self.asserted += 1
        return condition

    def ask_again(self) -> None:
        """Drop the functions that the last test looked up, except names that the test bound itself."""
        for name, function in self._functions.items():
            if self.get(name) is function:
                del self[name]
        self._functions = {}


def print_nowhere(*values: Any, file: Any = None, **how: Any) -> None:
    """What tests print is seen by nobody: an object of the code is made a text where it is, and that stays there."""
    elsewhere = file not in (None, sys.stdout, sys.stderr)
    print(*values if elsewhere else (), file=file if elsewhere else io.StringIO(), **how)
    for value in values:
        make_text(value, "show", KindOfStandIn.link, set())


def make_text(value: Any, operation: str, link: Asked, seen: set[int]) -> None:
    """Have the code make texts of its objects in a value, as Python does for the value's text."""
    kind: Any = type(value)
    if kind in STAND_INS.values() or kind is link.kin.get(kind.__base__):
        link.ask(operation, (value,), {})
    elif issubclass(kind, BaseException):
        str(value)
    elif id(value) not in seen and (named(value) or kind in (tuple, frozenset, *VIEWED)):
        seen.add(id(value))
        for inner in (*value, *value.values()) if issubclass(kind, dict) else value:
            make_text(inner, "represent", link, seen)


class ModuleOfTests:
    """What the library finds as the module of the tests (`dataclasses`, `typing`): its `__dict__` is their names."""

    def __init__(self, names: Names) -> None:
        self.__dict__ = names


class Solution(ModuleType):
    """The module object that tests import as the module of the code."""

    def __init__(self, link: Link) -> None:
        super().__init__("solution")
        object.__setattr__(self, "_link", link)

    def __getattribute__(self, name: str) -> Any:
        if name in OF_THE_MODULE:
            self._link.refuse(f"a test reads {name} of the module of the code")
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.refuse(f"a test sets {name} of the module of the code")

    def __getattr__(self, name: str) -> Any:
        try:
            if name.startswith("__"):
                raise KeyError
            return self._link.name(name)
        except KeyError:
            raise AttributeError(name) from None


class Reach:
    """Which tests depend on the code: those that query it, or that use a variable set or used by such a test."""

    def __init__(self, tests: list[ast.Module]) -> None:
        self._defined = {one.name: one for test in tests for one in test.body if isinstance(one, DEFINITIONS)}
        set_up = [one for one in self._defined.values() if _sets_up(one)]
        self._set = {one.name for one in set_up} | {
            name.id for test in tests for name in names_in(test) if isinstance(name.ctx, ast.Store)
        }
        self._set -= {RESULT}
        self._reached: set[str] = set()

    def uses_the_code(self, test: ast.Module, *, asked: bool) -> bool:
        """Whether the test depends on the code; `asked` is whether it queried the code."""
        mentioned = {node.id for node in self.run_by(test) if isinstance(node, ast.Name)} & self._set
        used = asked or bool(mentioned & self._reached)
        self._reached |= mentioned if used else set()
        return used

    def run_by(self, test: ast.Module) -> list[ast.AST]:
        """The nodes that a test runs: not those of definitions that it does not reach, but those of other tests'
        definitions that it does. Of a class of tests it runs the methods that it names."""
        ahead: list[ast.AST] = [one for one in test.body if not isinstance(one, DEFINITIONS)]
        nodes, left = [], dict(self._defined)
        for part in ahead:  # grows while it is read
            inside = list(ast.walk(part))
            nodes += inside
            said = {node.attr for node in inside if isinstance(node, ast.Attribute)}
            said |= {str(node.value) for node in inside if isinstance(node, ast.Constant)}
            for name in {node.id for node in inside if isinstance(node, ast.Name)} & set(left):
                one = left.pop(name)
                ahead += [inner for inner in one.body if not _is_another_test(inner, said)] if _is_class(one) else [one]
        return nodes


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _sets_up(node: ast.stmt) -> bool:
    """Whether it is a class of tests, whose tests may use what was asked when it was set up."""
    return isinstance(node, ast.ClassDef) and any(getattr(one, "name", "") == "setUpClass" for one in node.body)


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def _is_another_test(node: ast.stmt, said: set[str]) -> bool:
    return isinstance(node, DEFINITIONS) and node.name.startswith("test") and node.name not in said


def prepared(
    link: Link, asked: dict[str, Any], tests: list[ast.Module], setup: ast.Module, rewrite: Rewrite | None
) -> tuple[Names, str]:
    """The names that tests may use, or why there are none. The set-up runs before the code; `tested` names always come
    from the code, even where the set-up defines them too, and others where nothing else has bound them."""
    texts = [*tests, setup]
    real, run = modules(texts), run_in(texts)
    names = Names(link, reaching(link, texts_in(texts)) | real)
    sys.modules |= {"solution": Solution(link), "tests": ModuleOfTests(names)}  # type: ignore[dict-item]
    try:
        if rewrite is None:
            link.trust(asked["setup"])
        else:
            time.sleep = link.sleep
            look_at_what_is_awaited()
            link.followed.watch(f"{asked['tests']}{asked['setup']}")
            exec(compile(rewrite.visit(setup), "setup.py", "exec", dont_inherit=True), names)
    except BaseException as error:  # noqa: BLE001 - whatever the task's set-up raises
        return names, f"{SETUP_FAILS}: {in_a_line(error)}"
    if absent := next(missing(tests), ""):
        return names, f"{SETUP_FAILS}: the sandbox's Python has no module {absent}"
    names.of_code = frozenset(asked["names"])
    for name in set(asked["tested"]) - set(real):
        names.pop(name, None)
    if rewrite is not None:
        guard(link, run)
    try:
        link.run(asked["code"])
    except BaseException as error:  # noqa: BLE001 - whatever the code raises
        return names, in_a_line(error)
    return names, ""


def modules(tests: list[ast.Module]) -> dict[str, Any]:
    """Standard modules whose attributes the tests use: the real modules are used, even if the code defines the same
    names. They, and the modules that tests import, are loaded before the code runs, and never from the code."""
    nodes = [node for test in tests for node in ast.walk(test)]
    bases = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    of_tests = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    found = {}
    standard = bases & set(sys.stdlib_module_names) - of_tests
    for name in (imported | standard) - UNWANTED:
        with contextlib.suppress(Exception):  # of another platform; a test that imports it says so
            found[name] = importlib.import_module(name)
    return {name: module for name, module in found.items() if name in standard}


def missing(tests: list[ast.Module]) -> Iterator[str]:
    """Modules that tests import at their top level, and that are not there."""
    for node in (node for test in tests for node in test.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (of for name in named if (of := name.partition(".")[0]) and not _is_there(of))


def _is_there(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def compiled(test: ast.Module, rewrite: Rewrite | None) -> Any:
    """The test as code, or what Python has against it; without `rewrite` the text, which the process of the code
    runs."""
    try:
        return compile(rewrite.visit(test), "test.py", "exec", dont_inherit=True) if rewrite else ast.unparse(test)
    except (SyntaxError, ValueError, RecursionError) as error:
        return error


def why_test_fails(test: ast.Module, code: Any, names: Names, link: Link, reach: Reach) -> str:
    """Why the test fails; empty when it passes. When the process of the code has ended, no test passes; a test that
    never queries the code, or runs none of its asserts, fails too, since it proves nothing about it."""
    link.objection, before, asserted, failed = "", link.asked, names.asserted, names.failed
    names.ask_again()
    try:
        if isinstance(code, Exception):
            raise code
        link.trust(code) if isinstance(code, str) else exec(code, names)
        complaint = "" if reach.uses_the_code(test, asked=link.asked > before) else NEVER_ASKED
        if not isinstance(code, str) and names.asserted == asserted and is_left_undecided(reach.run_by(test)):
            complaint = complaint or NEVER_ASSERTED
        complaint = complaint or (CAUGHT if names.failed > failed else "")
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is a failure of the code
        reach.uses_the_code(test, asked=link.asked > before)
        not_asked_for = isinstance(error, NameError) and error.name in names.of_code
        complaint = in_a_line(error)
        complaint = f"{complaint}; {NEEDS_TRUST}" if not_asked_for or is_about_an_object(error) else complaint
    return link.objection or link.ended or complaint
