"""The modules that tests name, loaded before the code runs, and never from its files."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

SETUP_FAILS = "the set-up fails"
UNWANTED = {"this", "antigravity"}
"""Modules with side effects when imported."""
CASES = (("case", "TestCase"), ("async_case", "IsolatedAsyncioTestCase"))


def modules(tests: Sequence[ast.Module]) -> dict[str, Any]:
    """Python's modules whose attributes the tests use, also where they do not import them. What they import is loaded
    too, with the parts of packages that they name."""
    nodes = [node for test in tests for node in ast.walk(test)]
    members = [(node.value.id, node.attr) for node in nodes if _is_member(node)]  # type: ignore[attr-defined]
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    called = {alias.asname or alias.name: alias.name for alias in aliases}
    imported = {*called.values()}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    of_tests = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    standard = {base for base, _ in members} & set(sys.stdlib_module_names) - of_tests
    parts = {
        f"{called[base]}.{part}" for base, part in members if called.get(base, "os") not in sys.stdlib_module_names
    }
    found = {}
    for name in sorted((imported | standard | parts) - UNWANTED):
        with contextlib.suppress(Exception):  # of another platform, or no module; a test that imports it says so
            found[name] = importlib.import_module(name)
    return {name: module for name, module in found.items() if name in standard}


def _is_member(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def imported_by(test: ast.AST) -> Iterator[str]:
    """The names that imports bind."""
    for node in ast.walk(test):
        if isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]


def missing(tests: Sequence[ast.Module]) -> str:
    """Why tests cannot be run here: a module that they import at their top level is not there; empty if all are."""
    for node in (node for test in tests for node in test.body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for of in (name.partition(".")[0] for name in named):
                if of and not _is_there(of):
                    return f"{SETUP_FAILS}: the sandbox's Python has no module {of}"
    return ""


def tear_down_after_failures() -> None:
    """Have `TestCase.debug`, which raises what a test raises, tear a test down that fails, as `TestCase.run` does."""
    for case in (getattr(sys.modules.get(f"unittest.{name}"), of, None) for name, of in CASES):
        if case is not None:
            case._callTestMethod = _torn_down(case._callTestMethod)


def _torn_down(call: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def call_test_method(test: Any, method: Any) -> None:
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(test.doCleanups)
            if_it_fails.callback(test._callTearDown)
            call(test, method)
            if_it_fails.pop_all()

    return call_test_method


def _is_there(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


class ModuleOfTests:
    """What the library finds as the module of the tests (`dataclasses`, `unittest`): its `__dict__` is their names."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__ = names


def read_by_classes(tests: Iterable[ast.AST]) -> set[str]:
    """The names that bodies of classes read and have not bound before. Python looks for them without asking a
    `__missing__`."""
    defined = (node for test in tests for node in ast.walk(test) if isinstance(node, ast.ClassDef))
    return {name for one in defined for name in read_before_bound(one.body)}


def read_before_bound(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that statements, in this order, read and have not bound before."""
    found: set[str] = set()
    bound: set[str] = set()
    for statement in statements:
        nodes = [statement, *(node for part in _run_at_once(statement) for node in ast.walk(part))]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        binds = {name for node in nodes for name in names_bound_by(node)}
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        before = bound | binds - {name.id for target in targets for name in ast.walk(target) if is_name(name)}
        found |= {name.id for name in names if isinstance(name.ctx, ast.Load)} - before
        bound |= binds
    return found


def names_bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a node itself binds."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.alias():
            yield from imported_by(node)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler() | ast.MatchAs():
            yield node.name or ""


def is_name(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name)


def _run_at_once(statement: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from (*statement.decorator_list, *statement.args.defaults)
    else:
        yield statement
