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
COMPUTE = frozenset(
    """bisect cmath collections copy functools heapq itertools json math operator pytest random re solution statistics
    string textwrap time typing unittest""".split()
)
"""Modules that neither change nor observe the process that they run in."""
ACT = frozenset("eval exec compile open input globals locals vars setattr delattr getattr hasattr __import__".split())
RAISES = ("raises", "assertRaises", "assertRaisesRegex")
OF_PYTEST = ("raises", "approx", "fail")
PLAIN = frozenset(name for kind in (str, bytes, list, dict, set, tuple, int, float) for name in dir(kind))
"""Attributes that plain values have."""
CHANGE = frozenset("append extend insert remove pop clear sort reverse update add discard setdefault".split())
VALUES = frozenset(
    """abs all any bin bool bytes chr complex dict divmod float frozenset getattr hex int len list max min ord pow range
    repr round set sorted str sum tuple""".split()
)
"""Functions of Python whose results are values."""
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


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


def is_case(node: ast.AST) -> bool:
    """Whether a node defines a `unittest.TestCase`."""
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("TestCase") for base in node.bases)


def needs_pytest(tree: ast.Module) -> bool:
    """Whether tests have fixtures, parameters or marks."""
    plain = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    methods = [node for one in plain if not is_case(one) for node in one.body if isinstance(node, Function)]
    functions = [node for node in (*tree.body, *methods) if isinstance(node, Function)]
    tests = [node for node in functions if node.name.startswith("test")]
    takes = any(len(node.args.args) > (node in methods) and not calls_any(tree, {node.name}) for node in tests)
    fixtures = any(node.name.startswith(("setup_", "teardown_")) or "fixture" in ast.dump(node) for node in functions)
    return takes or fixtures or any(node.decorator_list for node in tests)


def calls_any(tree: ast.AST, functions: set[str]) -> bool:
    """Whether a text calls one of these functions by its name."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Name) and called.id in functions for called in calls)


class FormDecision:
    """One look at the texts of a row's tests. `names` come from the code, and `solution` is its module. Variables count
    as the code's objects wherever in the texts they stand."""

    def __init__(self, trees: Sequence[ast.Module], names: set[str]) -> None:
        self._nodes = [node for tree in trees for node in ast.walk(tree)]
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._functions = {node.name: node for node in self._nodes if isinstance(node, Function)}
        given = [self._functions[name].args.args[:1] for name in ("check",) if name in self._functions]
        self._names = names | {parameter.arg for parameters in given for parameter in parameters}
        imports = [node for node in self._nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._modules = {alias.asname or alias.name for node in imports for alias in node.names} - names
        assigned = [node for node in self._nodes if isinstance(node, ast.Assign) and self._is_call(node.value)]
        results = {ast.unparse(target) for node in assigned for target in node.targets}
        made = {ast.unparse(target) for node in assigned if self._makes(node.value) for target in node.targets}
        read = {ast.unparse(n.value) for n in self._nodes if isinstance(n, ast.Attribute) and n.attr not in PLAIN}
        self._objects = made | (results & read)

    def reason(self) -> str:
        """Why the tests need the objects of the code; empty where its values are enough."""
        for node in self._nodes:
            why = next(self._reasons(node), "")
            if why:
                return why
        return ""

    def _is_name(self, node: ast.AST | None) -> bool:
        of_module = isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("solution", "_solution")
        return of_module or (isinstance(node, ast.Name) and node.id in self._names)

    def _is_call(self, node: ast.AST | None) -> bool:
        """Whether it calls the code: a name, or a method of what such a call returns."""
        function = node.func if isinstance(node, ast.Call) else None
        while isinstance(function, ast.Attribute | ast.Call) and not self._is_name(function):
            function = function.value if isinstance(function, ast.Attribute) else function.func
            if ast.unparse(function) in getattr(self, "_objects", ()):
                return True
        return self._is_name(function)

    def _makes(self, node: ast.AST) -> bool:
        """Whether it calls a class of the code."""
        function = node.func if isinstance(node, ast.Call) else None
        named = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return self._is_name(function) and named[:1].isupper()

    def _reasons(self, node: ast.AST) -> Iterator[str]:
        parent, text = self._parents.get(node), ""
        loaded = isinstance(getattr(node, "ctx", None), ast.Load)
        if self._is_name(node) and loaded and not self._name_fits(node, parent):
            text = ast.unparse(node)
        elif self._makes(node) or (isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self._objects):
            text = "" if self._object_fits(node, parent) else ast.unparse(parent or node)
        elif isinstance(node, ast.Attribute):
            of = ast.unparse(node.value)
            known = of in self._objects | self._modules | {"self", "cls"} or self._is_name(node.value)
            is_check = node.attr in PLAIN or node.attr.startswith(("assert", "fail")) or node.attr in RAISES
            in_module = of.partition(".")[0] in self._modules
            text = "" if known or is_check or in_module or self._is_call(node.value) else ast.unparse(node)
        if text:
            yield f"they need the code's objects for `{text[:60]}`"
        if self._is_call(node):
            if isinstance(parent, ast.withitem | ast.Await | ast.FunctionDef | ast.ClassDef):
                yield f"they use more than the value of `{ast.unparse(node)[:60]}`"
            given = [*node.args, *(one.value for one in node.keywords)]  # type: ignore[attr-defined]
            yield from (f"they hand `{ast.unparse(one)[:60]}` to the code" for one in given if not self._is_value(one))
        yield from self._uses(node)

    def _name_fits(self, node: ast.AST, parent: ast.AST | None) -> bool:
        if isinstance(parent, ast.Attribute):
            return True
        if not isinstance(parent, ast.Call):
            return False
        function = parent.func
        return function is node or ast.unparse(function).rpartition(".")[2] in (*RAISES, "check", "map", "callable")

    def _object_fits(self, node: ast.AST, parent: ast.AST | None) -> bool:
        if isinstance(getattr(node, "ctx", None), ast.Store):
            return isinstance(parent, ast.Assign)
        if isinstance(parent, ast.Compare):
            return isinstance(parent.ops[0], ast.Is | ast.IsNot) and _is_none(parent.comparators[0])
        while isinstance(parent, ast.List | ast.Tuple | ast.keyword):
            parent = self._parents.get(parent)
        if isinstance(parent, ast.Attribute):
            return isinstance(parent.ctx, ast.Load)
        return isinstance(parent, ast.Assign | ast.Expr) or self._is_call(parent)

    def _is_value(self, node: ast.expr) -> bool:
        """Whether an argument is a value, or an object of the code."""
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            return self._is_call(node) or name in VALUES or not hasattr(builtins, name)
        if isinstance(node, ast.Name):
            return node.id not in self._functions and not hasattr(builtins, node.id)
        if isinstance(node, ast.Attribute):
            return ast.unparse(node.value) not in ("operator", "itertools", "functools", "str", "list", "dict")
        if isinstance(node, ast.Lambda | ast.GeneratorExp):
            return False
        return all(self._is_value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))

    def _uses(self, node: ast.AST) -> Iterator[str]:
        """What acts on the process, or on objects, whoever has them."""
        match node:
            case ast.Import(names=aliases) if any(alias.name.partition(".")[0] not in COMPUTE for alias in aliases):
                yield f"they use `{ast.unparse(node)}`"
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] not in COMPUTE - {"copy"} or "mock" in name:
                yield f"they import from {name}"
            case ast.ImportFrom(module="pytest", names=names) if any(one.name not in OF_PYTEST for one in names):
                yield "they need pytest"
            case ast.Attribute(value=ast.Name("pytest"), attr=name) if name not in OF_PYTEST:
                yield f"they use pytest.{name}"
            case ast.Attribute(attr=name) if name in ("seed", "mock", "assertLogs") or name.startswith("__"):
                yield f"they use {name}"
            case ast.Name(id=name) if name in ACT and name not in self._names:
                yield f"they use {name}"
            case ast.ClassDef(name=name) if not (is_case(node) or name.startswith("Test")):
                yield f"they define the class {name}"
            case ast.AsyncFunctionDef() | ast.Await():
                yield "they are asynchronous"
            case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[right]):
                if not any(_is_none(side) or _is_builtin(side) for side in (left, right)):
                    yield f"they ask whether {ast.unparse(node)}"
            case ast.ExceptHandler(type=ast.expr() as kind) if not _is_builtin(kind):
                yield f"they handle {ast.unparse(kind)}"
            case ast.Call(func=ast.Attribute(attr=name), args=[kind, *_]) if name in RAISES and not _is_builtin(kind):
                yield f"they expect {ast.unparse(kind)}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr=name)) if name in CHANGE and self._objects:
                named = [one for one in self._nodes if isinstance(one, ast.Name) and one.id == of]
                if of not in self._objects and any(self._is_call(self._parents[one]) for one in named):
                    yield f"they change {of}, which an object of the code may hold"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _is_builtin(node: ast.expr) -> bool:
    listed = node.elts if isinstance(node, ast.Tuple) else [node]
    return all(isinstance(one, ast.Name) and hasattr(builtins, one.id) for one in listed)
