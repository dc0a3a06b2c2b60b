"""Static analysis: which tests cannot be judged by plain values alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rlhf.reward.code.apart import not_apart
from rlhf.reward.code.names import KNOWN
from rlhf.reward.code.unit_tests import Asserts


def needs_trust(tests: Asserts) -> str:
    """What these tests do with objects of the code that only works in the code's own process; empty where none is
    found.

    A class of the code is recognised by its capital letter. Cases missed here are reported when the test runs.
    """
    trees = [ast.parse(text) for text in tests.texts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    bound = set(_bound(nodes))
    of_code = {node.id for node in nodes if isinstance(node, ast.Name)} - bound - KNOWN
    objects = {target for node in nodes for target in _made_of(node, of_code)}
    answers = _answers(nodes, of_code)
    reasons = (_reason(node, of_code, objects) or _identity(node, answers) for node in nodes)
    used = next(filter(None, not_apart(tests.texts, tests.setup, tests.entry_point)), "")
    own = next((node.name for node in nodes if isinstance(node, ast.ClassDef) and not _is_of_tests(node)), "")
    return used or next(filter(None, reasons), f"they define the class {own}" if own and of_code else "")


def _is_of_tests(defined: ast.ClassDef) -> bool:
    return defined.name.startswith("Test") or any(ast.unparse(base).endswith("TestCase") for base in defined.bases)


def _bound(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


def _calls(node: ast.AST, of_code: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in of_code


def _answers(nodes: list[ast.AST], of_code: set[str]) -> set[str]:
    """Variables that hold results of the code's functions."""
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and _calls(node.value, of_code)]
    assigned = [node for node in assigned if not _is_class(node.value.func, of_code)]  # type: ignore[attr-defined]
    return {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}


def _identity(node: ast.AST, answers: set[str]) -> str:
    """A question whether two answers of the code are one, which texts, numbers and tuples do not tell."""
    match node:
        case ast.Compare(left=left, comparators=[right], ops=[ast.Is() | ast.IsNot()]):
            sides = (left, right)
            if not any(isinstance(side, ast.Constant) or _called(side) == "type" for side in sides):
                calls = [side for side in sides if _called(side)]
                names = {side.id for side in sides if isinstance(side, ast.Name)}
                return (
                    f"they ask whether {ast.unparse(node)}" if len(calls) == 2 or (names and names <= answers) else ""
                )
    return ""


def _called(node: ast.AST) -> str:
    """The name of the called method or function."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _is_class(node: ast.AST | None, of_code: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in of_code and node.id[:1].isupper()


def _is_object(node: ast.AST, of_code: set[str], objects: set[str]) -> bool:
    made = isinstance(node, ast.Call) and _is_class(node.func, of_code)
    return made or (isinstance(node, ast.Name) and node.id in objects)


def _made_of(node: ast.AST, of_code: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_class(node.value.func, of_code):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _reason(node: ast.AST, of_code: set[str], objects: set[str]) -> str:
    match node:
        case ast.ClassDef(bases=bases) if any(_is_class(base, of_code) for base in bases):
            return f"the class {node.name} is one of the code's kind"
        case ast.Call(func=ast.Name(id="bool" | "hash" | "vars" | "dir"), args=[of]) if _is_object(
            of, of_code, objects
        ):
            return f"they convert {ast.unparse(of)}"
        case ast.Compare(left=left, comparators=others, ops=ops) if not isinstance(ops[0], ast.In | ast.NotIn):
            compared = [one for one in (left, *others) if _is_object(one, of_code, objects)]
            return f"they compare {ast.unparse(compared[0])}" if compared else ""
        case ast.BinOp(left=left, right=right):
            used = [one for one in (left, right) if _is_object(one, of_code, objects)]
            return f"they compute with {ast.unparse(used[0])}" if used else ""
        case ast.With(items=items):
            entered = [item.context_expr for item in items if _is_object(item.context_expr, of_code, objects)]
            return f"they enter {ast.unparse(entered[0])}" if entered else ""
        case _:
            return ""
