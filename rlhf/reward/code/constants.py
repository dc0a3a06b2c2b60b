"""Static analysis: the constants of tests, which belong to no test of their own."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from rlhf.reward.code.apart import OF_THE_PROCESS, imported_names
from rlhf.reward.code.checking.importing import names_bound_by
from rlhf.reward.code.names import OF_PYTHON
from rlhf.reward.code.reached import Definition

Assignment = ast.Assign | ast.AnnAssign
OF_RUNNING = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


def constants_of(texts: Sequence[ast.Module]) -> list[list[ast.stmt]]:
    """For each text its assignments of constants: names that the texts only ever set at their top level, to what they
    write themselves or make of it with Python's own functions and the library, and that none of their statements
    changes; and of functions without a name of their own (`lambda`)."""
    nodes = [node for text in texts for node in ast.walk(text)]
    assigned = [[one for one in text.body if isinstance(one, Assignment) and _is_simple(one)] for text in texts]
    everything = [one for of_text in assigned for one in of_text]
    bound = Counter(name for node in nodes for name in names_bound_by(node))
    constant = Counter(name for one in everything for name in _targets(one))
    names = {name for name in constant if constant[name] == bound[name]} - {*_changed(texts)}
    others = {name for name, of in imported_names(nodes) if not of.startswith("solution")} - set(constant)
    others |= OF_PYTHON - OF_THE_PROCESS - set(bound)
    pure = set(names)
    while mixed := {name for one in everything if not _read_by(one) <= pure | others for name in _targets(one)} & pure:
        pure -= mixed
    others |= pure
    computed = {name for one in everything if not (_defines(one) or _read_by(one) <= others) for name in _targets(one)}
    return [[one for one in of_text if (names - computed).issuperset(_targets(one))] for of_text in assigned]


def targets_of(statement: ast.stmt) -> list[str]:
    """The names that an assignment sets."""
    return list(_targets(statement)) if isinstance(statement, Assignment) else []


def _defines(statement: Assignment) -> bool:
    value = statement.value
    return isinstance(value, ast.Lambda) and not (value.args.defaults or value.args.kw_defaults)


def _is_simple(statement: Assignment) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    names = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    runs = statement.value is None or any(isinstance(node, OF_RUNNING) for node in ast.walk(statement.value))
    return all(isinstance(name, ast.Name) for name in names) and not runs


def _targets(statement: Assignment) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for node in (node for target in targets for node in ast.walk(target)):
        yield from names_bound_by(node)


def _changed(texts: Sequence[ast.Module]) -> Iterator[str]:
    """The names whose values statements may change that are not within a definition: they call a method of it, hand it
    to a function whose result nobody has, set or delete a part of it."""
    running = [one for text in texts for one in text.body if not isinstance(one, Definition)]
    for node in (node for one in running for node in ast.walk(one)):
        match node:
            case ast.Expr(value=ast.Call() as call):
                yield from (one.id for one in ast.walk(call) if isinstance(one, ast.Name))
            case ast.Subscript(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))
            case ast.Name(id=name, ctx=ast.Del()):
                yield name


def _read_by(statement: Assignment) -> set[str]:
    """The names that are read when the statement runs, or what it makes of them is called."""
    nodes = list(ast.walk(statement.value)) if statement.value else []
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return read - {name for node in nodes for name in names_bound_by(node)}
