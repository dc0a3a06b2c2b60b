"""Tests as a test runner would run them: what they define as tests is called, and a main guard is open.

`test_…` functions, methods of `unittest.TestCase` (by the library's own suite, with its fixtures) and of classes
`Test…` are called one by one, where the text does not call them itself; calls of `unittest.main` and `pytest.main` go.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from rlhf.reward.code.checking.completeness import OF_METHODS, RESULT, required_arguments
from rlhf.reward.code.reached import Definition, Function, asserts, reached_from

MAINS = ("unittest.main", "pytest.main", "sys.exit(pytest.main", "sys.exit(unittest.main")
ENDS = ("exit()", "quit()", "sys.exit()", "exit(0)", "sys.exit(0)")
"""Calls that end a file of tests."""
FIXTURES = "method class function module"
NEEDS_PYTEST = frozenset(f"{when}_{what}" for when in ("setup", "teardown") for what in FIXTURES.split())
SKIPPED = ("unittest.skip(", "skip(", "pytest.mark.skip")
PREPARED = ("import unittest", f"{RESULT} = unittest.suite._DebugResult()", f"{RESULT}._testRunEntered = True")
"""A result by which suites raise what tests raise, and set a class up once for those of its tests that follow."""
ENDED = (f"{RESULT}._testRunEntered = False", f"unittest.TestSuite().run({RESULT}, debug=True)")
"""What tears down the last class, and the module."""
OF_UNITTEST = "unittest.TestSuite(["
UNDECIDED = frozenset(("skipIf", "skipUnless", "skipif", "skipTest", "SkipTest", "expectedFailure", "xfail"))
Run = list[tuple[ast.stmt, bool]]
"""Statements, and whether each is a test of its own."""


class NotRunnable(Exception):
    """Tests need more of a runner than this, or would never run."""

    __test__ = False


def as_run(texts: Sequence[ast.Module]) -> list[Run]:
    """The statements of each text, with the calls of what it defines as tests. Raises `NotRunnable`."""
    for text in texts:
        _check_forms(text)
    mains = tuple(f"{name}(" for text in texts for name in _mains(text))
    bodies = [list(_opened(text.body, (*MAINS, *mains))) for text in texts]
    if any(_asks_for_its_name(statement) for body in bodies for statement in body):
        raise NotRunnable("a condition on __name__ is more than a main guard")
    runs = [_with_calls(body, around) for body, around in zip(bodies, _scopes(bodies), strict=True)]
    _, unreached = reached_from([statement for run in runs for statement, _ in run])
    for name, definition in unreached:
        if asserts(definition) and not _is_skipped(definition) and not _is_helper(definition):
            raise NotRunnable(f"nothing calls {name}, which asserts")
    return runs


def _check_forms(text: ast.Module) -> None:
    if needed := _defined(text.body) & NEEDS_PYTEST:
        raise NotRunnable(f"{min(needed)} needs pytest")
    for node in ast.walk(text):
        named = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if named in UNDECIDED:
            raise NotRunnable(f"{named} leaves open whether a test counts")
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Tuple) and node.test.elts:
            raise NotRunnable(f"`assert {ast.unparse(node.test)}` holds always")


def _mains(text: ast.Module) -> Iterator[str]:
    """The names that `unittest.main` and `pytest.main` are imported by."""
    for node in ast.walk(text):
        if isinstance(node, ast.ImportFrom) and node.module in ("unittest", "pytest"):
            yield from (alias.asname or alias.name for alias in node.names if alias.name == "main")


def _opened(body: Iterable[ast.stmt], mains: tuple[str, ...]) -> Iterator[ast.stmt]:
    """The statements, with those of main guards in their place, without calls of a runner and what is skipped."""
    for statement in body:
        if isinstance(statement, ast.If) and _is_main_guard(statement.test):
            yield from _opened(statement.body, mains)
        elif failures := _code_of_exit(statement):
            yield ast.copy_location(ast.Assert(test=ast.UnaryOp(op=ast.Not(), operand=failures)), statement)
        elif not _runs_all(statement, mains) and not (isinstance(statement, Definition) and _is_skipped(statement)):
            yield statement


def _is_main_guard(test: ast.expr) -> bool:
    return ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__")


def _asks_for_its_name(statement: ast.stmt) -> bool:
    compared = [node for node in ast.walk(statement) if isinstance(node, ast.Compare)]
    return _names_in(compared)["__name__"] > 0


def _runs_all(statement: ast.stmt, mains: tuple[str, ...]) -> bool:
    text = ast.unparse(statement) if isinstance(statement, ast.Expr) else ""
    return text.startswith(mains) or text in ENDS


def _code_of_exit(statement: ast.stmt) -> ast.expr | None:
    """What a file of tests ends with: `sys.exit(main())` fails where the answer is not 0 or None."""
    match statement:
        case (
            ast.Expr(value=ast.Call(func=ended, args=[ast.Call(func=ast.Name()) as code]))
            | ast.Raise(exc=ast.Call(func=ended, args=[ast.Call(func=ast.Name()) as code]))
        ) if ast.unparse(ended) in ("sys.exit", "exit", "quit", "SystemExit"):
            return code
        case _:
            return None


def _is_skipped(definition: Definition) -> bool:
    return any(ast.unparse(decorator).startswith(SKIPPED) for decorator in definition.decorator_list)


@dataclass(frozen=True, slots=True)
class TextScope:
    """What the statements of a text run among: the names and attributes that anything running reads, the functions
    that a statement calls, the classes, and what is imported by another name."""

    names: Set[str]
    attributes: Set[str]
    called: Set[str]
    classes: Mapping[str, ast.ClassDef]
    renamed: Mapping[str, str]

    def derives(self, defined: ast.ClassDef, kind: str) -> bool:
        """Whether a class derives from one whose name ends so."""
        bases = [ast.unparse(base) for one in _mro(defined, self.classes) for base in one.bases]
        return any(self.renamed.get(base, base).endswith(kind) for base in bases)

    def is_mixed_in(self, defined: ast.ClassDef) -> bool:
        """Whether a case of `unittest` derives from a class, and runs its tests."""
        return any(
            one is not defined and any(above is defined for above in _mro(one, self.classes))
            for one in self.classes.values()
            if self.derives(one, "TestCase")
        )


def _scopes(bodies: Sequence[Sequence[ast.stmt]]) -> Iterator[TextScope]:
    """For each text: all texts run together, but for those that define what it defines."""
    defined = [_defined(body) for body in bodies]
    texts_with = Counter(name for names in defined for name in names)
    everything = _scope_of([one for body in bodies for one in body])
    for body, names in zip(bodies, defined, strict=True):
        if all(texts_with[name] == 1 for name in names):
            yield everything
            continue
        others = (
            other for other, theirs in zip(bodies, defined, strict=True) if other is not body and not theirs & names
        )
        yield _scope_of([*(one for other in others for one in other), *body])


def _scope_of(statements: Sequence[ast.stmt]) -> TextScope:
    nodes, _ = reached_from(statements)
    return TextScope(
        names={node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)},
        attributes={node.attr for node in nodes if isinstance(node, ast.Attribute)},
        called={name for one in statements if (name := _called_plainly(one))},
        classes={one.name: one for one in statements if isinstance(one, ast.ClassDef)},
        renamed={
            alias.asname: alias.name
            for one in statements
            if isinstance(one, ast.ImportFrom)
            for alias in one.names
            if alias.asname
        },
    )


def _with_calls(body: Sequence[ast.stmt], around: TextScope) -> Run:
    """The statements of a text with the calls that run its tests. A test that nothing else mentions stands directly
    before its calls, so that what it needs is no matter of other tests. A definition that is deleted is no test, only
    what others derive from; it is deleted when all have run."""
    named = _defined(body)
    of_tests = {name for name in named if name.startswith("test")} | _defined(filter(_is_class, body))
    whole = (one for one in body if isinstance(one, ast.Delete))
    deletes = [one for one in whole if of_tests.intersection(map(ast.unparse, one.targets))]
    deleted = _names_in(deletes)
    mentions = _names_in(body)
    first: Run = []
    last: Run = []
    for statement in (one for one in body if one not in deletes):
        calls = [] if _named(statement) in deleted else list(_calls(statement, around))
        mentioned = (
            isinstance(statement, Definition) and mentions[statement.name] > _names_in([statement])[statement.name]
        )
        (last if calls and not mentioned else first).append((statement, _calls_a_test(statement, named)))
        last += [(call, True) for call in calls]
    if any(ast.unparse(one).startswith(OF_UNITTEST) for one, is_test in last if is_test):
        last = [*_statements(PREPARED), *last, *_statements(ENDED)]
    return [*first, *last, *((one, False) for one in deletes)]


def _statements(texts: Iterable[str]) -> Run:
    return [(_statement(text), False) for text in texts]


def _defined(body: Iterable[ast.stmt]) -> set[str]:
    return {one.name for one in body if isinstance(one, Definition)}


def _is_class(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ClassDef)


def _named(statement: ast.stmt) -> str:
    return statement.name if isinstance(statement, Definition) else ""


def _names_in(parts: Iterable[ast.AST]) -> Counter[str]:
    """How often the parts mention each name."""
    return Counter(node.id for one in parts for node in ast.walk(one) if isinstance(node, ast.Name))


def _calls_a_test(statement: ast.stmt, named: set[str]) -> bool:
    return (name := _called_plainly(statement)).startswith("test") and name in named


def _called_plainly(statement: ast.stmt) -> str:
    """The function that a statement only calls, as a runner would. What another statement calls may not be called, or
    be caught."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[], keywords=[])):
            return name
        case _:
            return ""


def _calls(statement: ast.stmt, around: TextScope) -> Iterator[ast.stmt]:
    """The calls that run what the statement defines as tests, where it is not called already."""
    if isinstance(statement, ast.ClassDef):
        yield from _calls_of_class(statement, around)
    elif isinstance(statement, Function) and statement.name.startswith("test"):
        required = statement.args.args and statement.name in around.names
        if statement.name not in around.called and not required:
            _check_callable(statement, arguments=0)
            yield _statement(f"{statement.name}()")


def _calls_of_class(defined: ast.ClassDef, around: TextScope) -> Iterator[ast.stmt]:
    methods = {method.name: method for above in _mro(defined, around.classes) for method in _methods(above)}
    tests = [method for name, method in methods.items() if name.startswith("test") and not _is_skipped(method)]
    if around.derives(defined, "TestCase"):
        tests = tests or [method for name, method in methods.items() if name == "runTest"]
        for method in sorted(tests, key=lambda one: one.name):
            awaited = around.derives(defined, "IsolatedAsyncioTestCase")
            _check_callable(method, arguments=1, awaited=awaited)
            yield _statement(f"{OF_UNITTEST}{defined.name}({method.name!r})]).run({RESULT}, debug=True)")
    elif defined.name.startswith("Test") and "__init__" not in methods and not around.is_mixed_in(defined):
        if needed := next((name for name in methods if name in NEEDS_PYTEST), ""):
            raise NotRunnable(f"{defined.name}.{needed} needs pytest")
        for method in tests:
            if method.name not in around.attributes:
                _check_callable(method, arguments=1)
                yield _statement(f"{defined.name}().{method.name}()")


def _mro(defined: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class after those of the texts that it derives from."""
    above = [classes[base.id] for base in defined.bases if isinstance(base, ast.Name) and base.id in classes]
    return [*(one for base in reversed(above) if base is not defined for one in _mro(base, classes)), defined]


def _methods(defined: ast.ClassDef) -> list[Function]:
    return [part for part in defined.body if isinstance(part, Function)]


def _is_helper(definition: Definition) -> bool:
    """Whether no runner would call it: it needs arguments, and has no name of a test."""
    if isinstance(definition, ast.ClassDef) or definition.name.startswith(("test", "check")):
        return False
    return not set(required_arguments(definition)) <= OF_METHODS


def _check_callable(function: Function, *, arguments: int, awaited: bool = False) -> None:
    if len(required_arguments(function)) > arguments or None in function.args.kw_defaults:
        raise NotRunnable(f"{function.name} takes arguments, which need pytest")
    if isinstance(function, ast.AsyncFunctionDef) and not awaited:
        raise NotRunnable(f"{function.name} is asynchronous: call it with asyncio.run")


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]
