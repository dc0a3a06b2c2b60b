"""How the text of a test is rewritten before it runs: what Python would answer for a proxy is asked of the link, and
what decides the test is counted."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from rlhf.reward.code.checking.completeness import mark
from rlhf.reward.code.checking.guard import FORMATS
from rlhf.reward.code.checking.scopes import bound_names, read_by_classes

TYPE_OF, TYPE, MATCHED = "_rlhf_type_of", "_rlhf_type", "_rlhf_matched"
ASSERTED, CHECKED, GUARDED = "_rlhf_asserted", "_rlhf_checked", "_rlhf_guarded"
SWALLOWED, READ, ARGS_OF = "_rlhf_swallowed", "_rlhf_read", "_rlhf_args_of"
HANDLED = "_rlhf_handled"
EVERYTHING = ("Exception", "BaseException", "AssertionError")
FORMAT = ("format", "format_map")
ASKED = {"__class__": TYPE_OF, "args": ARGS_OF}
"""Attributes that are asked for."""


class Rewrite(ast.NodeTransformer):
    """Replaces `type` in a test, wherever it is called or handed on, and what `match` matches: Python would answer for
    the proxy. Also methods of texts that reach what the text names. What decides a test is counted when it runs. Names
    `of_code` are asked for in the bodies of classes, where Python would not, and annotations that hold one are not
    evaluated: the library cannot ask a proxy."""

    def __init__(self, texts: list[ast.Module], of_code: list[str], marks: Mapping[int, int]) -> None:
        self._marks = marks
        self._of_code = set(of_code) - bound_names(node for text in texts for node in ast.walk(text))
        read = (name for text in texts for name in read_by_classes(text) if name.id in of_code)
        self._read_by_classes = {id(name) for name in read}
        self._kept: set[int] = set()

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if id(node) in self._read_by_classes:
            return _called(READ, ast.copy_location(ast.Constant(node.id), node))
        asked = node.id == "type" and isinstance(node.ctx, ast.Load) and id(node) not in self._kept
        return _called(TYPE, node) if asked else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """All names of Python's own and of the code are there already, some of them as tests get them."""
        of_these = node.module in ("builtins", "solution") and node.names[0].name == "*"
        return ast.copy_location(ast.Pass(), node) if of_these else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        of_kinds = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
        makes = isinstance(node.func, ast.Name) and len(node.args) == 3
        self._keeping(node, [*(node.args if of_kinds else []), *([node.func] if makes else [])])
        if is_check(node):
            node.func = _called(CHECKED, node.func)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return self._keeping(node, [node.left, *node.comparators])

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._keeping(node, node.bases)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = self._in_words(node.returns)
        number = self._marks.get(id(node))
        self.generic_visit(node)
        if number is not None:
            at = 0 if ast.get_docstring(node) is None else 1
            node.body.insert(at, ast.fix_missing_locations(ast.copy_location(ast.Expr(mark(number)), node.body[0])))
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        number = self._marks.get(id(node))
        self.generic_visit(node)
        if number is not None:
            both = ast.Tuple(elts=[mark(number), node.body], ctx=ast.Load())
            last = ast.Subscript(value=both, slice=ast.Constant(1), ctx=ast.Load())
            node.body = ast.fix_missing_locations(ast.copy_location(last, node.body))
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = self._in_words(node.annotation)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = self._in_words(node.annotation) or node.annotation
        return self.generic_visit(node)

    def _in_words(self, annotation: ast.expr | None) -> ast.expr | None:
        if annotation is None or not {name.id for name in names_in(annotation)} & self._of_code:
            return annotation
        return ast.copy_location(ast.Constant(ast.unparse(annotation)), annotation)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self._keeping(node, [node.value])
        asks = isinstance(node.ctx, ast.Load)
        if asks and node.attr in ASKED:
            return _called(ASKED[node.attr], node.value)
        return _called(FORMATS, node.value, ast.Constant(node.attr)) if asks and node.attr in FORMAT else node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Asserts are counted: one that is not run proves nothing, and one that fails is not forgiven."""
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
            handler.body.insert(0, _told(SWALLOWED, handler))
        for handler in node.handlers:
            handler.body.insert(0, _told(HANDLED, handler))
        return node

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def visit_Match(self, node: ast.Match) -> ast.AST:
        self.generic_visit(node)
        node.subject = _called(MATCHED, node.subject)
        return node

    def _keeping(self, node: ast.AST, kinds: list[ast.expr]) -> ast.AST:
        """The node with its parts replaced, but for those that mean the class `type` itself."""
        self._kept |= {id(kind) for kind in kinds if isinstance(kind, ast.Name)}
        return self.generic_visit(node)


def _called(name: str, value: ast.expr, *more: ast.expr) -> ast.Call:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[value, *more], keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, value))


def _told(name: str, where: ast.AST) -> ast.Expr:
    said = ast.Expr(ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[], keywords=[]))
    return ast.fix_missing_locations(ast.copy_location(said, where))


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
