"""Tests as a test runner would run them: what they define as tests is called, and a main guard is open.

`test_…` functions and methods of `unittest.TestCase` or of classes `Test…` are called one by one, where the text does
not call them itself; calls of `unittest.main` and `pytest.main` go.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

MAINS = ("unittest.main", "pytest.main", "sys.exit(pytest.main", "sys.exit(unittest.main")
NEEDS_PYTEST = ("setup_method", "setup_class", "setup_function", "setup_module")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class NotRunnable(Exception):
    """Tests need more of a runner than this, or would never run."""

    __test__ = False


def as_run(texts: Sequence[ast.Module]) -> list[list[tuple[ast.stmt, bool]]]:
    """For each text its statements, and whether each is a call that was added. Raises `NotRunnable`."""
    bodies = [list(_opened(text.body)) for text in texts]
    mentioned = [
        (statement, _called_in(statement)) for statement in _with_tests([one for body in bodies for one in body])
    ]
    runs = []
    for body in bodies:
        added = [call for statement in body for call in _calls(statement, mentioned)]
        runs.append([*((statement, False) for statement in body), *((call, not _is_set_up(call)) for call in added)])
    _check_that_asserts_are_reached([statement for run in runs for statement, _ in run])
    return runs


def asserts(node: ast.AST) -> bool:
    """Whether a statement holds an assert, or a method of the kind. `assert False` marks what is not to be reached."""
    return any(
        (isinstance(inner, ast.Assert) and not isinstance(inner.test, ast.Constant))
        or (isinstance(inner, ast.Attribute) and inner.attr.startswith("assert"))
        for inner in ast.walk(node)
    )


def _opened(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements, with those of main guards in their place, and without calls of a runner."""
    for statement in body:
        if isinstance(statement, ast.If) and _is_main_guard(statement.test):
            yield from _opened(statement.body)
        elif not (isinstance(statement, ast.Expr) and ast.unparse(statement).startswith(MAINS)):
            yield statement


def _is_main_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _calls(statement: ast.stmt, mentioned: Sequence[tuple[ast.stmt, set[str]]]) -> Iterator[ast.stmt]:
    """The calls that run what the statement defines as tests, where no other statement mentions it."""
    if not isinstance(statement, Definition) or any(
        statement.name in names for other, names in mentioned if other is not statement
    ):
        return
    if isinstance(statement, ast.ClassDef):
        yield from _calls_of_class(statement)
    elif statement.name.startswith("test"):
        _check_callable(statement, arguments=0)
        yield _statement(f"{statement.name}()")


def _calls_of_class(defined: ast.ClassDef) -> Iterator[ast.stmt]:
    of_unittest = any(ast.unparse(base).endswith("TestCase") for base in defined.bases)
    if not of_unittest and not defined.name.startswith("Test"):
        return
    methods = [part for part in defined.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
    if needed := next((method.name for method in methods if method.name in NEEDS_PYTEST), ""):
        raise NotRunnable(f"{defined.name}.{needed} needs pytest")
    if of_unittest and any(method.name == "setUpClass" for method in methods):
        yield _statement(f"{defined.name}.setUpClass()")
    for method in methods:
        if method.name.startswith("test"):
            _check_callable(method, arguments=1)
            call = f"{defined.name}({method.name!r}).debug()" if of_unittest else f"{defined.name}().{method.name}()"
            yield _statement(call)


def _is_set_up(call: ast.stmt) -> bool:
    return ast.unparse(call).endswith(".setUpClass()")


def _check_callable(function: ast.FunctionDef | ast.AsyncFunctionDef, *, arguments: int) -> None:
    given = function.args
    required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    if required > arguments or any(default is None for default in given.kw_defaults):
        raise NotRunnable(f"{function.name} takes arguments, which need pytest")
    if isinstance(function, ast.AsyncFunctionDef):
        raise NotRunnable(f"{function.name} is asynchronous: call it with asyncio.run")


def _check_that_asserts_are_reached(statements: Sequence[ast.stmt]) -> None:
    """Raise `NotRunnable` where a definition asserts and nothing reaches it: what it tests would be passed over."""
    reached = _reached(statements)
    for statement in statements:
        if isinstance(statement, Definition) and statement not in reached and asserts(statement):
            raise NotRunnable(f"nothing calls {statement.name}, which asserts")


def _reached(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that run, and the definitions that they mention."""
    defined = {one.name: one for one in statements if isinstance(one, Definition)}
    reached = [one for one in statements if not isinstance(one, Definition)]
    for one in reached:  # grows while it is read
        reached += [defined.pop(name) for name in list(defined) if name in _names_in(one)]
    return reached


def _with_tests(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """What runs, with everything that looks like a test."""
    reached = _reached(statements)
    named = [one for one in statements if isinstance(one, Definition) and one.name.startswith(("test", "Test"))]
    return [*reached, *(one for one in named if one not in reached)]


def _called_in(statement: ast.stmt) -> set[str]:
    """The names that a statement reads, and does not itself bind."""
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {one.id for one in names if isinstance(one.ctx, ast.Load)} - {
        one.id for one in names if isinstance(one.ctx, ast.Store)
    }


def _names_in(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
