"""How the text of a test is rewritten before it runs: what decides it is counted, and the type of an object of the code
is asked for."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from types import EllipsisType, NoneType

from rlhf.reward.code.checking.completeness import mark

ASSERTED, CHECKED, GUARDED, SWALLOWED = "_rlhf_asserted", "_rlhf_checked", "_rlhf_guarded", "_rlhf_swallowed"
TYPE, IS, PAIR, AWAITED = "_rlhf_type", "_rlhf_is", "_rlhf_pair", "_rlhf_awaited"
HANDED_TYPE = "_rlhf_handed_type"
AWAITS = ("suppress", "raises", "assertRaises", "assertRaisesRegex")
EVERYTHING = ("Exception", "BaseException", "AssertionError")


class Counting(ast.NodeTransformer):
    """Has a test tell when it decides something: an assert, a call of a method or function of that name, a condition
    under which it raises. Functions with `marks` tell that they run."""

    def __init__(self, marks: Mapping[int, int]) -> None:
        self._marks = marks
        self._types: set[int] = set()

    def visit_Module(self, node: ast.Module) -> ast.AST:
        parts = (part for one in ast.walk(node) for part in _asking_types(one) if part)
        self._types = {id(name) for part in parts for name in ast.walk(part)}
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """`type` where it is handed on, to be called by others."""
        is_handed_on = node.id == "type" and isinstance(node.ctx, ast.Load) and id(node) not in self._types
        return _called(HANDED_TYPE, node) if is_handed_on else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="type") as called, args=[value], keywords=[]):
                return _called(TYPE, value, called)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=[first, *rest]) if name in AWAITS:
                node.args = [_awaited(first), *(map(_awaited, rest) if name == "suppress" else rest)]
        if is_check(node):
            node.func = _called(CHECKED, node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Compare(ops=[ast.Is()], comparators=[other]) if not _is_single(node.left, other):
                return _called(IS, node.left, other)
            case ast.Compare(ops=[ast.IsNot()], comparators=[other]) if not _is_single(node.left, other):
                return ast.copy_location(ast.UnaryOp(ast.Not(), _called(IS, node.left, other)), node)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.type = node.type and _awaited(node.type)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return _called(TYPE, node.value) if node.attr == "__class__" and isinstance(node.ctx, ast.Load) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        number = self._marks.get(id(node))
        self.generic_visit(node)
        if number is not None:
            at = 0 if ast.get_docstring(node) is None else 1
            node.body.insert(at, ast.fix_missing_locations(ast.copy_location(ast.Expr(mark(number)), node.body[0])))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        number = self._marks.get(id(node))
        self.generic_visit(node)
        if number is not None:
            both = ast.Tuple(elts=[mark(number), node.body], ctx=ast.Load())
            last = ast.Subscript(value=both, slice=ast.Constant(1), ctx=ast.Load())
            node.body = ast.fix_missing_locations(ast.copy_location(last, node.body))
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """One that is not run proves nothing, and one that fails is not forgiven."""
        self.generic_visit(node)
        if not isinstance(node.test, ast.Constant):
            node.test = _called(ASSERTED, node.test)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        guards = is_check(node)
        self.generic_visit(node)
        if guards:
            node.test = _called(GUARDED, node.test)
        return node

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """A handler of everything that only tells is not what decides: what a check raises fails the test."""
        telling = [one for one in node.handlers if _only_tells(one)] if _holds_check(node.body) else []
        self.generic_visit(node)
        for handler in telling:
            said = ast.Expr(ast.Call(func=ast.Name(id=SWALLOWED, ctx=ast.Load()), args=[], keywords=[]))
            handler.body.insert(0, ast.fix_missing_locations(ast.copy_location(said, handler)))
        return node

    visit_TryStar = visit_Try  # type: ignore[assignment]


def _asking_types(node: ast.AST) -> list[ast.expr | None]:
    """The parts of a node in which `type` is called, compared, or no more than a name of a type."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]):
            return [kinds]
        case ast.Call(func=ast.Name() as called):
            return [called]
        case ast.Compare():
            return [one for one in (node.left, *node.comparators) if isinstance(one, ast.Name)]
        case ast.arg() | ast.AnnAssign():
            return [node.annotation]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.returns]
        case ast.ClassDef():
            return [*node.bases, *(keyword.value for keyword in node.keywords)]
        case ast.Subscript():
            return [node.value]
        case _:
            return []


def _called(name: str, *values: ast.expr) -> ast.Call:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[*values], keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, values[0]))


def _awaited(kinds: ast.expr) -> ast.expr:
    """Classes of exceptions that a test awaits; those that it does not name as Python's may be the code's."""
    if isinstance(kinds, ast.Starred):
        return ast.copy_location(ast.Starred(_awaited(kinds.value), kinds.ctx), kinds)
    is_known = all(map(_is_of_python, getattr(kinds, "elts", [kinds])))
    return kinds if is_known else _called(AWAITED, kinds)


def _is_of_python(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and hasattr(builtins, node.id)


def _is_single(*sides: ast.expr) -> bool:
    """Whether one of these is a constant of which there is one only: nothing, a truth, `...`."""
    return any(
        isinstance(side, ast.Constant) and isinstance(side.value, bool | NoneType | EllipsisType) for side in sides
    )


def _holds_check(body: list[ast.stmt]) -> bool:
    return any(is_check(node) for one in body for node in ast.walk(one))


def _only_tells(handler: ast.ExceptHandler) -> bool:
    """Whether it handles every exception, or a failed assert, and neither raises, asserts, returns nor sets."""
    everything = handler.type is None or ast.unparse(handler.type) in EVERYTHING
    return everything and all(
        isinstance(one, ast.Pass | ast.Continue) or (isinstance(one, ast.Expr) and not _holds_check([one]))
        for one in handler.body
    )


def is_left_undecided(nodes: list[ast.AST]) -> bool:
    """Whether a test of which no check ran has checks that are counted, and none that are not: `assert False` and what
    is raised mark what is not to be reached, and what is to raise is caught."""
    counted = {id(one) for node in nodes if isinstance(node, ast.If) and is_check(node) for one in ast.walk(node)}
    others = (
        isinstance(node, ast.Raise | ast.Assert) and not is_check(node) for node in nodes if id(node) not in counted
    )
    expects = (
        isinstance(node, ast.Try) or (isinstance(node, ast.Attribute) and node.attr == "raises") for node in nodes
    )
    return any(map(is_check, nodes)) and not any(others) and not any(expects)


def is_check(node: ast.AST) -> bool:
    """Whether it decides a test when it runs: an assert of something, a call of a method or function of that name, a
    condition under which something is raised."""
    match node:
        case ast.Assert(test=test):
            return not isinstance(test, ast.Constant)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name.startswith("assert") or name == CHECKED
        case ast.If(body=body, orelse=other):
            return any(isinstance(one, ast.Raise) for one in (*body, *other))
        case _:
            return False


def names_in(test: ast.AST) -> list[ast.Name]:
    """The names that a test has, wherever."""
    return [node for node in ast.walk(test) if isinstance(node, ast.Name)]
