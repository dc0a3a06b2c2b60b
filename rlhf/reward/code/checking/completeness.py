"""Whether all that tests define to decide something was run: a test that a runner would have collected, and a function
with an assert that nothing came to, let wrong code pass."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
OF_METHODS = {"self", "cls"}
ENTERED, RESULT = "_rlhf_entered", "_rlhf_result"


class Entries:
    """The functions of the tests that decide something, and which of them have run. `marks` are the numbers by which
    they say so, by the identity of their nodes."""

    def __init__(self, tests: list[ast.Module]) -> None:
        decide = list(_deciding([node for test in tests for node in ast.walk(test)]))
        self.marks = {id(node): number for number, node in enumerate(decide)}
        self._expected = {number: _label(node) for number, node in enumerate(decide) if _is_expected(node)}
        self._ran: set[tuple[CodeType, Any]] = set()

    def entered(self, number: int) -> None:
        """A function says that it runs: a method, for which class."""
        self._expected.pop(number, None)
        frame = sys._getframe(1)
        self._ran.add((frame.f_code, None))
        if frame.f_code.co_argcount:
            first = frame.f_locals.get(frame.f_code.co_varnames[0])
            self._ran.add((frame.f_code, first if issubclass(type(first), type) else type(first)))

    def left(self, names: Mapping[str, Any]) -> str:
        """What of the tests has not run; empty where all has."""
        return next(iter(self._expected.values()), "") or next(self._uncollected(names), "")

    def _uncollected(self, names: Mapping[str, Any]) -> Iterator[str]:
        case = getattr(sys.modules.get("unittest"), "TestCase", None)
        classes = {name: value for name, value in names.items() if issubclass(type(value), type)}
        mixed_in = {above for one in classes.values() if case in one.__mro__ for above in one.__mro__[1:]}
        for name, value in names.items():
            if type(value) is FunctionType and name.startswith("test"):
                yield from [] if self._has_run(value) else [name]
            elif name in classes and (case in value.__mro__ or (_is_named_test(name, value) and value not in mixed_in)):
                found = ((method, getattr(value, method)) for method in dir(value) if method.startswith("test"))
                yield from (f"{name}.{method}" for method, one in found if not self._has_run(one, value))

    def _has_run(self, function: Any, kind: Any = None) -> bool:
        """Whether it has, for this class, or is none that a runner would call, or decides nothing itself."""
        known = type(function) is FunctionType and not hasattr(function, "__unittest_skip__")
        if not known or ENTERED not in function.__code__.co_names:
            return True
        return (function.__code__, kind if function.__code__.co_argcount else None) in self._ran


def mark(number: int) -> ast.Call:
    """The call by which a function says that it runs."""
    return ast.Call(func=ast.Name(id=ENTERED, ctx=ast.Load()), args=[ast.Constant(number)], keywords=[])


def _deciding(nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """The functions that hold a check, or a name of one that does."""
    functions = [node for node in nodes if isinstance(node, Function | ast.Lambda) and not _is_skipped(node)]
    words = {id(function): {word for node in ast.walk(function) for word in _said(node)} for function in functions}
    found = {id(one) for one in functions if any(map(_checks, ast.walk(one)))}
    names: set[str] = set()
    while new := {one.name for one in functions if isinstance(one, Function) and id(one) in found} - names:
        names |= new
        found |= {id(one) for one in functions if words[id(one)] & new}
    yield from (one for one in functions if id(one) in found)


def _checks(node: ast.AST) -> bool:
    """Whether it decides something; what is only raised, and `assert False`, mark what is not to be reached."""
    named = next(_said(node), "")
    return named.startswith("assert") or (isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant))


def _said(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr


def _is_expected(node: ast.AST) -> bool:
    """Whether a runner could call the function: it needs no arguments."""
    return not isinstance(node, Function) or set(required_arguments(node)) <= OF_METHODS


def required_arguments(function: Function) -> list[str]:
    """The names of the arguments that every call has to give."""
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    return names[: len(names) - len(given.defaults)]


def _is_skipped(node: ast.AST) -> bool:
    return isinstance(node, Function) and any("skip" in ast.unparse(decorator) for decorator in node.decorator_list)


def _label(node: ast.AST) -> str:
    return node.name if isinstance(node, Function) else f"a lambda in line {getattr(node, 'lineno', 0)}"


def _is_named_test(name: str, kind: Any) -> bool:
    """Whether pytest would look for tests in a class, by its name."""
    return name.startswith("Test") and "__init__" not in vars(kind)
