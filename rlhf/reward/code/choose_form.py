"""Decide from the text of a row's tests whether they can run apart from the code: if they only call its names, call
methods of its objects and read their attributes. All others, also those not understood here, run in its process."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence, Set

COMPUTE = """bisect cmath collections copy functools heapq json math pytest random re solution statistics string
    textwrap time typing unittest"""
"""Modules that neither change nor observe the process that they run in."""
ACT = "eval exec compile open input globals locals vars setattr delattr getattr hasattr seed mock assertLogs"
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
PLAIN = {name for kind in (str, bytes, list, dict, set, tuple, int, float) for name in dir(kind)}
CHANGE = "append extend insert remove pop clear sort reverse update add discard"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def bound_names(*trees: ast.AST) -> set[str]:
    """Return the names that texts bind anywhere."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    named = (getattr(node, "asname", None) or getattr(node, "name", None) or "" for node in nodes)
    return stored | arguments | {name.partition(".")[0] for name in named}


def free_names(*trees: ast.AST) -> list[str]:
    """Return the names that texts use and neither bind nor have from Python, in their order."""
    bound = bound_names(*trees) | {"__name__", "__file__"}
    used = [node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(used) if name not in bound and not hasattr(builtins, name)]


def calls_any(tree: ast.AST, functions: set[str]) -> bool:
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in functions for called in calls)


def is_case(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("TestCase") for base in node.bases)


class FormDecision:
    """An analysis of the texts of a row's tests. `names` come from the code. A capital marks a class of the code;
    variables assigned from its calls are objects of the code everywhere."""

    def __init__(self, trees: Sequence[ast.Module], names: Set[str]) -> None:
        self._nodes = nodes = [node for tree in trees for node in ast.walk(tree)]
        functions = [node for node in nodes if isinstance(node, Function)]
        self._names = names | {arg.arg for node in functions if node.name == "check" for arg in node.args.args[:1]}
        self._not_values = {*vars(builtins), *(node.name for node in functions)}
        bind = (ast.alias, ast.withitem, ast.ExceptHandler)
        self._others = bound_names(*(node for node in nodes if isinstance(node, bind))) | {"self", "cls"}
        assigned = [node for node in nodes if isinstance(node, ast.Assign) and self._is_new(node.value)]
        self._objects = {ast.unparse(target) for node in assigned for target in node.targets}
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._called = {node.func for node in calls}
        takers = [node for node in calls if _called(node) in ("check", "map", *RAISES)]
        handed = {arg for node in takers for arg in node.args[_called(node) in RAISES :]}
        self._read = {node.value for node in nodes if isinstance(node, ast.Attribute)}
        self._left = self._read | {node.value for node in nodes if isinstance(node, ast.Assign | ast.Expr)}
        self._only_called = self._called | handed | self._read

    def reason(self) -> str:
        """Return why the tests need the objects of the code; empty where its values are enough."""
        needs = (node for node in self._nodes if self._acts(node) or self._needs_object(node))
        return next((f"they use {ast.unparse(node)[:80]}" for node in needs), "")

    def _is_name(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self._names

    def _is_new(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and self._is_name(node.func) and ast.unparse(node)[0].isupper()

    def _is_object(self, node: ast.AST) -> bool:
        is_read = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        return self._is_new(node) or (is_read and ast.unparse(node) in self._objects)

    def _needs_object(self, node: ast.AST) -> bool:
        if self._is_name(node):
            return node not in self._only_called
        if self._is_object(node) and node not in self._left:
            return True
        if isinstance(node, ast.Attribute):
            known = ast.unparse(node.value).partition(".")[0] in self._others or self._is_object(node.value)
            return not (node.attr in PLAIN or known or self._is_name(node.value))
        is_call = isinstance(node, ast.Call) and self._is_name(node.func)
        return is_call and any(map(self._is_no_value, ast.walk(node)))

    def _is_no_value(self, node: ast.AST) -> bool:
        """Whether a part of a call of the code is a function, a class or an iterator."""
        is_called = node in self._called and ast.unparse(node) not in ("iter", "map", "zip")
        named = isinstance(node, ast.Name) and node.id in self._not_values - self._names and not is_called
        return named or isinstance(node, ast.Lambda | ast.GeneratorExp)

    def _acts(self, node: ast.AST) -> bool:
        """Whether a node acts on the process or on objects of any origin, or is not understood here."""
        match node:
            case ast.Import(names=names):
                return any(alias.name == "solution" or alias.name not in COMPUTE.split() for alias in names)
            case ast.ImportFrom(module=module):
                return module not in COMPUTE.split()
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                return not ast.unparse(node).startswith("self.")
            case ast.Name(id=name) | ast.alias(name=name) | ast.Attribute(attr=name) if name not in self._names:
                error = name.endswith(("Error", "Exception")) and not hasattr(builtins, name)
                return error or name in ACT.split() or name.startswith("__")
            case ast.ClassDef(name=name):
                return not (is_case(node) or name.startswith("Test"))
            case ast.AsyncFunctionDef() | ast.Await() | ast.FunctionDef(decorator_list=[_, *_]):
                return True
            case ast.withitem(context_expr=expression):
                return _called(expression) not in (*RAISES, "subTest")
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[right]):
                return not any(hasattr(builtins, ast.unparse(side)) for side in (left, right))
            case ast.Call(func=ast.Attribute(value=ast.Name() as of, attr=name)):
                return name in CHANGE.split() and bool(self._objects) and not self._is_object(of)
        return False


def _called(node: ast.AST | None) -> str:
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
