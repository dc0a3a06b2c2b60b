"""Decide by the text of a row's tests whether they can run apart from the code.

They can where the code's names only stand where they are called, and its objects where their methods are called, their
attributes are read or they are handed back. All else needs the objects themselves.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from typing import Literal

Form = Literal["values", "script"]
COMPUTE = """bisect cmath collections copy functools heapq itertools json math operator pytest random re solution
    statistics string textwrap time typing unittest"""
"""Modules that neither change nor observe the process that they run in."""
ACT = "eval exec compile open input globals locals vars setattr delattr getattr hasattr __import__"
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
OF_PYTEST = ("raises", "approx", "fail")
TAKE_NAMES = (*RAISES, "check", "map", "callable")
"""Functions that are handed a function of the code and call it."""
PLAIN = frozenset(name for kind in (str, bytes, list, dict, set, tuple, int, float) for name in dir(kind))
NO_VALUES = "iter map zip filter reversed enumerate object"
"""Functions of Python whose results are no values."""
CHANGE = "append extend insert remove pop clear sort reverse update add discard"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def bound_names(*trees: ast.AST) -> set[str]:
    """Names that texts bind anywhere."""
    return {name for tree in trees for node in ast.walk(tree) for name in _binds(node)}


def _binds(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
            yield name
        case ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)


def free_names(*trees: ast.AST) -> list[str]:
    """Names that texts use and neither bind nor have from Python, in their order."""
    bound = bound_names(*trees) | {"__name__", "__file__"}
    used = [node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(used) if name not in bound and not hasattr(builtins, name)]


def calls_any(tree: ast.AST, functions: set[str]) -> bool:
    """Whether a text calls one of these functions by its name."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in functions for called in calls)


def is_case(node: ast.AST) -> bool:
    """Whether a node defines a `unittest.TestCase`."""
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def needs_pytest(tree: ast.Module) -> bool:
    """Whether tests have fixtures, parameters or marks."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not is_case(node)]
    methods = [node for one in classes for node in one.body if isinstance(node, Function)]
    for node in (*(node for node in tree.body if isinstance(node, Function)), *methods):
        takes = len(node.args.args) > (node in methods) and not calls_any(tree, {node.name})
        if node.name.startswith("test") and (takes or node.decorator_list):
            return True
        if node.name.startswith(("setup_", "teardown_")) or "fixture" in ast.dump(node):
            return True
    return False


class FormDecision:
    """One look at the texts of a row's tests. `names` come from the code; a variable that a call of one of its classes
    is assigned to counts as an object of the code wherever it stands."""

    def __init__(self, trees: Sequence[ast.Module], names: set[str]) -> None:
        self._nodes = [node for tree in trees for node in ast.walk(tree)]
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        functions = [node for node in self._nodes if isinstance(node, Function)]
        self._functions = {node.name for node in functions}
        self._names = names | {one.arg for node in functions if node.name == "check" for one in node.args.args[:1]}
        bind = (ast.Import, ast.ImportFrom, ast.withitem, ast.ExceptHandler)
        self._others = {name for node in self._nodes if isinstance(node, bind) for name in bound_names(node)}
        assigned = [node for node in self._nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
        libraries = self._others - self._names - {"solution"}
        made_there = [node for node in assigned if ast.unparse(node.value).partition(".")[0] in libraries]
        self._others |= {ast.unparse(target) for node in made_there for target in node.targets}
        self._objects = set[str]()
        made = [node for node in self._nodes if isinstance(node, ast.Assign) and self._is_object(node.value)]
        self._objects = {ast.unparse(target) for node in made for target in node.targets}

    def reason(self) -> str:
        """Why the tests need the objects of the code; empty where its values are enough."""
        return next((f"they use {ast.unparse(node)[:80]}" for node in self._nodes if self._needs_object(node)), "")

    def _is_name(self, node: ast.AST) -> bool:
        of_module = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "solution"
        return of_module or (isinstance(node, ast.Name) and node.id in self._names)

    def _is_object(self, node: ast.AST) -> bool:
        """Whether it is a call of a class of the code, or a variable with an object."""
        if isinstance(node, ast.Call):
            return self._is_name(node.func) and ast.unparse(node.func).rpartition(".")[2][:1].isupper()
        return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self._objects

    def _calls_code(self, node: ast.AST | None) -> bool:
        """Whether it calls a name of the code, or a method of what such a call returns."""
        function: ast.AST | None = node.func if isinstance(node, ast.Call) else None
        while function and not self._is_name(function) and not self._is_object(function):
            function = function.value if isinstance(function, ast.Attribute) else getattr(function, "func", None)
        return function is not None

    def _needs_object(self, node: ast.AST) -> bool:
        parent = self._parents.get(node)
        called = parent.func if isinstance(parent, ast.Call) else None
        if self._calls_code(node) and isinstance(parent, ast.withitem | ast.Await | Function | ast.ClassDef):
            return True
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return isinstance(node, ast.Attribute) and not ast.unparse(node).startswith("self.")
        if self._is_name(node):
            return not (called is node or isinstance(parent, ast.Attribute) or _ends_with(called, TAKE_NAMES))
        if self._is_object(node):
            return not isinstance(parent, ast.Attribute | ast.Assign | ast.Expr)
        if isinstance(node, ast.Attribute) and node.attr not in (*PLAIN, *RAISES):
            first = ast.unparse(node.value).partition(".")[0].partition("(")[0]
            known = first in {*self._others, *self._objects, *self._names, "self", "cls"}
            if not (known or self._calls_code(node.value) or node.attr.startswith(("assert", "fail"))):
                return True
        return self._is_no_value(node) or self._acts(node)

    def _is_no_value(self, node: ast.AST) -> bool:
        """Whether a node is no value, and stands in the arguments of a call of the code."""
        of_module = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("operator", "itertools")
        if isinstance(node, ast.Name):
            parent = self._parents[node]
            is_called = isinstance(parent, ast.Call) and parent.func is node and node.id not in NO_VALUES.split()
            no_value = (node.id in self._functions or hasattr(builtins, node.id)) and not is_called
        else:
            no_value = of_module or isinstance(node, ast.Lambda | ast.GeneratorExp)
        above: ast.AST | None = node
        while no_value and (below := above) and (above := self._parents.get(below)):
            if self._calls_code(above) and below is not above.func:  # type: ignore[attr-defined]
                return True
        return False

    def _acts(self, node: ast.AST) -> bool:
        """Whether it acts on the process, or on objects, whoever has them."""
        match node:
            case ast.Import(names=names):
                renamed = any(one.name == "solution" and one.asname for one in names)
                return renamed or any(one.name.partition(".")[0] not in COMPUTE.split() for one in names)
            case ast.ImportFrom(module="pytest", names=names):
                return any(one.name not in OF_PYTEST for one in names)
            case ast.ImportFrom(module=module):
                return str(module).partition(".")[0] not in COMPUTE.split() or "mock" in str(module)
            case ast.Attribute(value=ast.Name("pytest"), attr=name):
                return name not in OF_PYTEST
            case ast.Attribute(attr=name):
                return name in ("seed", "mock", "assertLogs") or name.startswith("__")
            case ast.Name(id=name):
                return name in ACT.split() and name not in self._names
            case ast.ClassDef(name=name):
                return not (is_case(node) or name.startswith("Test"))
            case ast.AsyncFunctionDef() | ast.Await():
                return True
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[right]):
                return not any(isinstance(side, ast.Constant) or _is_builtin(side) for side in (left, right))
            case ast.ExceptHandler(type=ast.expr() as kind):
                return not _is_builtin(kind)
            case ast.Call(func=ast.Attribute(attr=name), args=[kind, *_]) if name in RAISES:
                return not _is_builtin(kind)
            case ast.Call(func=ast.Attribute(value=ast.Name() as of, attr=name)):
                return name in CHANGE.split() and bool(self._objects) and not self._is_object(of)
        return False


def _ends_with(called: ast.AST | None, names: Sequence[str]) -> bool:
    return called is not None and ast.unparse(called).rpartition(".")[2] in names


def _is_builtin(node: ast.expr) -> bool:
    listed = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(one, ast.Name) and hasattr(builtins, one.id) for one in listed)
