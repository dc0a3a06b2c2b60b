"""Static analysis: what runs of the definitions in tests."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from rlhf.reward.code.checking.completeness import RESULT

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
HOOKS = frozenset(
    f"{form}{of}" for form in ("setUp", "tearDown", "asyncSetUp", "asyncTearDown") for of in ("", "Class", "Module")
)
"""What `unittest` calls besides the tests."""
FOR_ALL = ("setUpClass", "setUpModule")
"""Those of them that it calls once for several tests."""

DECIDES = ("raises", "fail", "exit", "SystemExit")


def reached_from(statements: Iterable[ast.stmt]) -> tuple[list[ast.AST], list[tuple[str, Definition]]]:
    """The nodes that run where the statements do, and the definitions, by their names, that nothing mentions: the body
    of a definition runs where something that runs has its name."""
    ahead: list[ast.AST] = list(statements)
    nodes: list[ast.AST] = []
    said: set[str] = set()
    waiting: list[tuple[str, Definition]] = []
    while ahead:
        fresh = [node for part in ahead for node in _run_by(part)]
        nodes += fresh
        said.update(word for node in fresh for word in _said(node))
        waiting += [(node.name, node) for node in fresh if isinstance(node, Function)]
        waiting += [named for node in fresh if isinstance(node, ast.ClassDef) for named in _methods_of(node)]
        ahead = [part for name, one in waiting if _last(name) in said for part in one.body]
        waiting = [(name, one) for name, one in waiting if _last(name) not in said]
    return nodes, waiting


def _run_by(whole: ast.AST) -> Iterator[ast.AST]:
    """The node and what is within it, but for the bodies of functions: they wait for a call."""
    ahead = [whole]
    while ahead:
        yield (node := ahead.pop())
        if isinstance(node, Function):
            ahead += [*node.decorator_list, node.args]
        elif isinstance(node, ast.ClassDef):
            ahead += [
                *node.decorator_list,
                *node.bases,
                *(part for part in node.body if not isinstance(part, Function)),
            ]
        else:
            ahead += ast.iter_child_nodes(node)


def _methods_of(defined: ast.ClassDef) -> Iterator[tuple[str, Function]]:
    """The methods, by the names for which they wait: hooks and Python's own for that of the class."""
    for part in defined.body:
        if isinstance(part, Function):
            yield (defined.name if _is_hook(part) else f"{defined.name}.{part.name}"), part


def names_reached(
    run: Iterable[ast.Module], texts: Iterable[ast.Module], constants: Iterable[tuple[str, ast.stmt]]
) -> set[str]:
    """The names that texts say when they `run`: their statements, and the definitions of any text and the `constants`
    that these name. A method of a class of tests is one of its own."""
    waiting = [named for text in texts for one in text.body if isinstance(one, Definition) for named in _divided(one)]
    waiting += [(name, [statement]) for name, statement in constants]
    ahead: list[ast.AST] = [one for text in run for one in text.body if not isinstance(one, Definition)]
    said: set[str] = {*HOOKS}
    while ahead:
        said.update(word for part in ahead for node in ast.walk(part) for word in _said(node))
        ahead = [part for name, parts in waiting if name in said for part in parts]
        waiting = [named for named in waiting if named[0] not in said]
    return said


def _divided(definition: Definition) -> Iterator[tuple[str, list[ast.AST]]]:
    """A definition by its name, and each method of a class of tests by its own."""
    if not isinstance(definition, ast.ClassDef) or not _of_tests(definition):
        yield definition.name, [definition]
        return
    methods = [part for part in definition.body if isinstance(part, Function) and not _is_hook(part)]
    others = [part for part in definition.body if part not in methods]
    yield definition.name, [*definition.decorator_list, *definition.bases, *definition.keywords, *others]
    for method in methods:
        yield method.name, [method]


def only_reached(
    text: ast.Module, said: set[str], constants: Iterable[tuple[str, ast.stmt]], *, runs: bool
) -> Iterator[ast.stmt]:
    """The statements of a text that runs, but for its tests that are not `said`; of any other its imports, the suites'
    result, and its definitions and `constants` that are."""
    named = {id(statement) for name, statement in constants if name in said}
    for one in text.body:
        if not isinstance(one, Definition):
            if runs or isinstance(one, ast.Import | ast.ImportFrom) or _sets_result(one) or id(one) in named:
                yield one
        elif one.name in said or (runs and not _is_test(one)):
            yield _without_tests(one, said) if isinstance(one, ast.ClassDef) else one


def _without_tests(defined: ast.ClassDef, said: set[str]) -> ast.ClassDef:
    """A class without its tests that are not `said`."""
    body = [part for part in defined.body if not _is_test(part) or part.name in said]
    fields = dict(ast.iter_fields(defined)) | {"body": body or [ast.Pass()]}
    return defined if body == defined.body else ast.ClassDef(**fields)


def _is_test(node: ast.stmt) -> TypeGuard[Definition]:
    """Whether only a call by its name runs it: a decorator may call it, or keep it, too."""
    return isinstance(node, Definition) and node.name.startswith("test") and not node.decorator_list


def _sets_result(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]).startswith(RESULT)


def _of_tests(defined: ast.ClassDef) -> bool:
    return any(isinstance(part, Function) and part.name.startswith("test") for part in defined.body)


def _is_hook(method: Function) -> bool:
    return method.name in HOOKS or method.name.startswith("__")


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _said(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            yield name
        case ast.FunctionDef(name=name, decorator_list=[_, *_]):  # a decorator may call it
            yield name


def asserts(whole: ast.AST) -> bool:
    """Whether it holds an assert, or a method or function of that name. `assert False` marks what is not to be
    reached."""
    return any(
        (isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant)) or _name(node).startswith("assert")
        for node in ast.walk(whole)
    )


def checks(node: ast.AST) -> bool:
    """Whether the node may fail a test: an assert, also of `unittest`, pytest or numpy, or something raised."""
    named = _name(node)
    return isinstance(node, ast.Assert | ast.Raise) or named.startswith("assert") or named in DECIDES


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
