"""The process of the tests, apart from the code: it forks the code's process, runs each test here, and prints a result
line for each.

Input on standard input, as JSON: `key`, `code`, `tests`, `seconds`, `imports` (the tests too, with those that
cannot run here), `loads` (imports besides), `bound` (the names that each test binds), `left` (those that each leaves
though it fails), `constants` (the statements of each that it leaves), `names` (those that come from the code), `tested`
(those that do even where the set-up has them) and `setup` (run before the tests). Output: `verdicts.py`.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import ctypes
import json
import operator
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import CodeType, ModuleType
from typing import Any

from rlhf.reward.code.checking.completeness import ENTERED, RESULT, Entries
from rlhf.reward.code.checking.counting import (
    ASSERTED,
    AWAITED,
    CHECKED,
    GUARDED,
    HANDED_TYPE,
    IS,
    PAIR,
    SWALLOWED,
    TYPE,
    Counting,
    is_left_undecided,
)
from rlhf.reward.code.checking.exceptions import is_from_the_code
from rlhf.reward.code.checking.guard import guard
from rlhf.reward.code.checking.host import be_host
from rlhf.reward.code.checking.importing import (
    SETUP_FAILS,
    ModuleOfTests,
    missing,
    modules,
    names_bound_by,
    read_by_classes,
    tear_down_after_failures,
)
from rlhf.reward.code.checking.link import NEEDS_TRUST, Link
from rlhf.reward.code.checking.objects import Remote
from rlhf.reward.code.checking.reach import Reach
from rlhf.reward.code.checking.stand_ins import (
    attribute_by,
    awaited_by,
    callable_by,
    identity_by,
    instance_by,
    pair_by,
    pair_first,
    subclass_by,
    type_by,
)
from rlhf.reward.code.checking.verdicts import NEVER_ASKED, Verdicts, in_a_line

PR_SET_DUMPABLE = 4
ANNOTATIONS = __future__.annotations.compiler_flag
"""Annotations are not evaluated: they may name a class of the code."""
NEVER_ASSERTED = "none of the asserts of the test was run"
CAUGHT = "an assert of the test fails, and the failure is caught"
DEEPEST_TEXT = 10_000
"""Recursion limit while tests are rewritten: each level of their syntax takes several calls."""


def judge_main() -> None:
    """Run the tests; always exits with code 0, unless the process is killed."""
    requests, answers = parted()
    asked = json.load(sys.stdin)
    verdicts, link = Verdicts(), Link(requests, answers, asked["seconds"])
    closed_in()
    tests, setup = [ast.parse(test) for test in asked["tests"]], ast.parse(asked["setup"])
    entries, reach, passed = Entries(tests), Reach(tests), 0
    link.of_all = "a seed, which the code does not have" if sets_a_seed([*tests, setup]) else ""
    codes = [compiled(test, Counting(entries.marks)) for test in tests]  # before nothing may be compiled any more
    constants = [compiled(ast.parse(text), Counting({})) for text in asked["constants"]]
    names, complaint = prepared(link, asked, tests, setup)
    names[ENTERED] = entries.entered
    for index, (test, code) in enumerate(zip(tests, codes, strict=True)):
        told = complaint or why_test_fails(test, code, names, link, reach)
        if told and told != NEVER_ASKED:
            names.drop_but({RESULT, *asked["left"][index]})
        if told and (told != NEVER_ASKED or not test.body):
            names.waiting.append(constants[index])
        names.bound |= {*asked["bound"][index]}
        passed += not told
        if passed == len(tests) and (left := entries.left(names)):
            told = f"{left}, which decides something, has never run"
        verdicts.write(asked["key"], index, told)
    os._exit(0)


def parted() -> tuple[int, int]:
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
    return requests, answers


def closed_in() -> None:
    """Keep the tests' process from the code's files and signals."""
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    threading.excepthook = lambda _: None  # it would read and parse source files
    sys.unraisablehook = lambda _: None  # so would it
    folder = os.getcwd()
    sys.path[:] = [path for path in sys.path if os.path.isabs(path) and not path.startswith(folder)]
    os.chdir("/")


class Names(dict[str, Any]):
    """The names available to tests. Names of the code are looked up at each use, so tests see their current values;
    names that the tests bind themselves take precedence, and are theirs from there on, whether the binding has run or
    not: nothing of the code's or of Python's stands in."""

    def __init__(self, link: Link, given: dict[str, Any], tests: Sequence[ast.Module]) -> None:
        ours = {ASSERTED: self._assert, CHECKED: self._checking, GUARDED: self._guard, SWALLOWED: self._swallow}
        ours |= {IS: lambda one, other: operator.is_(*pair_by(link)(one, other)), PAIR: pair_by(link)}
        ours |= {
            AWAITED: awaited_by(link),
            TYPE: type_by(link),
            HANDED_TYPE: lambda called: type_by(link) if called is type else called,
            "callable": callable_by(link),
            "id": identity_by(link),
            "isinstance": instance_by(link),
            "issubclass": subclass_by(link),
        }
        super().__init__(given, __name__="tests", __builtins__=builtins, getattr=attribute_by(link), **ours)
        self.asserted = self.failed = 0
        self.of_code: frozenset[str] = frozenset()
        self.bound: set[str] = set()
        self.waiting: list[CodeType | Exception] = []
        """Constants of tests that have failed, or cannot run here."""
        self._link, self._eager = link, read_by_classes(tests)
        self._shared = {name for test in tests for name in declared_global(test)}  # Python sets them by itself
        self._set: set[str] = set()
        self._before: dict[str, int] = {}
        self._functions: dict[str, Any] = {}
        link.forget = self._forget

    def __missing__(self, name: str) -> Any:
        if name in self.bound:
            raise NameError(f"name {name!r} is not defined")
        if name not in self.of_code:
            raise KeyError(name)
        try:
            value = self._link.name(name)
        except KeyError:  # Python's own function of that name is not the code's
            raise NameError(f"name {name!r} is not defined", name=name) from None
        if callable(value):
            self._look_up(name, value)
        return value

    def ask_again(self) -> None:
        """Drop what the last test looked up, and look up what bodies of classes read."""
        for name in [*self._functions]:
            self._forget(name)
        for name in self._eager & self.of_code - self.bound - set(self):
            with contextlib.suppress(KeyError):
                self._look_up(name, self._link.name(name))

    def _look_up(self, name: str, value: Any) -> None:
        self._functions[name] = value
        super().__setitem__(name, value)

    def start_test(self, test: ast.Module) -> None:
        """Set the constants of tests that failed, and forget what the last test has set. Raises what that raises, and
        `NameError` for what bodies of classes read and nothing has bound: Python asks no `__missing__` for it."""
        while self.waiting:
            run(self.waiting.pop(0), self)
        own = {name for node in ast.walk(test) for name in names_bound_by(node)}
        if gone := read_by_classes([test]) & self.bound - {*own, *self}:
            raise NameError(f"name {min(gone)!r} is not defined")
        self._set.clear()
        self._before = {name: self._address(name) for name in self._shared}  # none of them is kept alive

    def drop_but(self, left: set[str]) -> None:
        """Drop what the last test has set, since it is not run beside the code, but for the names that it leaves."""
        changed = {name for name, was in self._before.items() if self._address(name) != was}
        for name in ((self._set | changed) - left) & set(self):
            del self[name]

    def _address(self, name: str) -> int:
        return id(self[name]) if name in self else 0

    def __setitem__(self, name: str, value: Any) -> None:
        self._set.add(name)
        super().__setitem__(name, value)

    def _forget(self, name: Any) -> None:
        if type(name) is str and name in self._functions and self.get(name) is self._functions.pop(name):
            del self[name]

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
                self.failed += type(method) is not Remote  # a test may await what the code raises
                raise

        return checked

    def _swallow(self) -> None:
        self.failed += 1

    def _guard(self, condition: Any) -> Any:
        """A condition under which a test raises: it has been decided."""
        self.asserted += 1
        return condition


class Solution(ModuleType):
    """What tests import as the module of the code."""

    def __init__(self, link: Link) -> None:
        super().__init__("solution")
        self._link = link

    def __getattr__(self, name: str) -> Any:
        try:
            if name.startswith("__"):
                raise KeyError(name)
            return self._link.name(name)
        except KeyError:
            raise AttributeError(name) from None


def prepared(link: Link, asked: dict[str, Any], tests: list[ast.Module], setup: ast.Module) -> tuple[Names, str]:
    """The names that tests may use, and why no test can pass with them, if so. The set-up runs before the code;
    `tested` names always come from the code, even where the set-up defines them too, and others where nothing else has
    bound them."""
    real = modules([*tests, setup, *map(ast.parse, asked["loads"])])
    names = Names(link, real, tests)
    sys.modules |= {"solution": Solution(link), "tests": ModuleOfTests(names)}  # type: ignore[dict-item]
    code = compiled(setup, Counting({}))
    try:
        run(code, names)
    except BaseException as error:  # noqa: BLE001 - whatever the task's set-up raises
        return names, f"{SETUP_FAILS}: {in_a_line(error)}"
    if absent := missing([ast.parse(text) for text in asked["imports"]]):
        return names, absent
    names.of_code = frozenset(asked["names"])
    for name in set(asked["tested"]) - set(real):
        names.pop(name, None)
    tear_down_after_failures()
    if "unittest.case" in sys.modules:
        vars(sys.modules["unittest.case"])["isinstance"] = names["isinstance"]
        pair_first(sys.modules["unittest.case"].TestCase, names[PAIR])
    guard(link.stop, set(texts_of_types([*tests, setup])))
    try:
        link.run(asked["code"])
    except BaseException as error:  # noqa: BLE001 - whatever the code raises
        return names, in_a_line(error)
    return names, ""


def declared_global(test: ast.Module) -> Iterator[str]:
    """The names that functions of a test set for others, or a comprehension for those around it."""
    for node in ast.walk(test):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id


def texts_of_types(tests: list[ast.Module]) -> Iterator[str]:
    """The annotations of the tests as texts, and the texts within them."""
    for node in (node for test in tests for node in ast.walk(test)):
        for at in ("annotation", "returns", "slice"):
            if isinstance(told := getattr(node, at, None), ast.expr):
                yield ast.unparse(told)
                yield from (str(one.value) for one in ast.walk(told) if isinstance(one, ast.Constant))


def compiled(test: ast.Module, counting: Counting) -> CodeType | Exception:
    """The test as code, or what Python has against it."""
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST_TEXT)
    try:
        made: CodeType = compile(counting.visit(test), "test.py", "exec", ANNOTATIONS, dont_inherit=True)
        return made
    except (SyntaxError, ValueError, RecursionError) as error:
        return error
    finally:
        sys.setrecursionlimit(usual)


def run(code: CodeType | Exception, names: Names) -> None:
    """Run a text, or raise what Python has against it."""
    if isinstance(code, Exception):
        raise code
    exec(code, names)


def why_test_fails(test: ast.Module, code: CodeType | Exception, names: Names, link: Link, reach: Reach) -> str:
    """Why the test fails; empty when it passes. When the process of the code has ended, no test passes; a test that
    never queries the code, or runs none of its asserts, fails too, since it proves nothing about it."""
    asserted, failed = names.asserted, names.failed
    complaint = ""
    link.start_test()
    try:
        names.ask_again()
        names.start_test(test)
        link.asked = 0
        run(code, names)
        if not reach.uses_the_code(test, asked=link.asked > 0):
            complaint = NEVER_ASKED
        elif names.asserted == asserted and is_left_undecided(reach.run_by(test)):
            complaint = NEVER_ASSERTED
        elif names.failed > failed:
            complaint = CAUGHT
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is a failure of the code
        reach.uses_the_code(test, asked=link.asked > 0)
        complaint = in_a_line(error)
        unknown = isinstance(error, NameError) and error.name in names.of_code
        if doubt := "" if unknown else doubtful_by(error, link):
            complaint = f"{complaint}, with {doubt}"
        complaint += f"; {NEEDS_TRUST}" if unknown or doubt else ""
    return link.objection or link.ended or complaint


def doubtful_by(error: BaseException, link: Link) -> str:
    """With what a test fails that may not fail in one Python; empty where it would."""
    if isinstance(error, RecursionError | MemoryError):
        return link.stands_in or "calls between two processes"
    is_a_verdict = isinstance(error, AssertionError) or is_from_the_code(error)
    return link.stands_in or ("" if is_a_verdict or not link.objects else "an object of the code")


def sets_a_seed(tests: list[ast.Module]) -> bool:
    """Whether tests seed what draws at random."""
    return any(isinstance(node, ast.Attribute) and node.attr == "seed" for test in tests for node in ast.walk(test))
