"""What the bodies of classes read of the names outside of them. There Python looks into the names of tests itself, and
asks no `__missing__`."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
IN_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.Match)


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that tests bind anywhere, but by imports."""
    found = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
    return found


def read_by_classes(tree: ast.AST) -> Iterator[ast.Name]:
    """Where the body of a class reads a name that it has not bound before, and no function around it binds."""
    ahead: list[tuple[ast.AST, frozenset[str]]] = [(tree, frozenset())]
    while ahead:
        node, around = ahead.pop()
        if isinstance(node, ast.ClassDef):
            yield from (name for name in _read_first(node) if name.id not in around)
        elif isinstance(node, FUNCTIONS):
            inside = list(ast.walk(node))
            around |= bound_names(inside) | set(_bound_otherwise(inside))
        ahead += [(inner, around) for inner in ast.iter_child_nodes(node)]


def _read_first(of_class: ast.ClassDef) -> Iterator[ast.Name]:
    bound: set[str] = set()
    for statement in of_class.body:
        here = list(_run_here(statement))
        binds = bound_names(here) | set(_bound_otherwise(here))
        targets = () if isinstance(statement, IN_BLOCKS) else _targets(statement)
        before = bound | (binds - bound_names(targets))
        yield from (node for node in here if isinstance(node, ast.Name) and _is_read(node) and node.id not in before)
        bound |= binds


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _targets(statement: ast.stmt) -> list[ast.AST]:
    """What a statement binds after it has read what it reads."""
    match statement:
        case ast.Assign(targets=targets):
            return [node for target in targets for node in ast.walk(target)]
        case ast.AnnAssign(target=target):
            return [target]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement]
        case _:
            return []


def _bound_otherwise(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.alias(name=name, asname=None) | ast.alias(asname=str(name)):
                yield name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name


def _run_here(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement but for the bodies of functions and classes in it, and annotations."""
    ahead: list[ast.AST] = [statement]
    while ahead:
        yield (node := ahead.pop())
        if isinstance(node, FUNCTIONS):
            ahead += node.args.defaults
            ahead += [default for default in node.args.kw_defaults if default]
            ahead += [] if isinstance(node, ast.Lambda) else node.decorator_list
        elif isinstance(node, ast.ClassDef):
            ahead += [*node.decorator_list, *node.bases, *node.keywords]
        else:
            ahead += ast.iter_child_nodes(node)
