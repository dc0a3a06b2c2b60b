"""Static analysis of tests: which names come from the code, and which tests would execute what the code returns."""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from rlhf.reward.code.apart import imported_names, names_of_stars
from rlhf.reward.code.checking.importing import is_name, names_bound_by, read_before_bound, read_by_classes
from rlhf.reward.code.reached import FOR_ALL, Definition

OF_PYTHON = frozenset(dir(builtins))
KNOWN = OF_PYTHON | set(sys.stdlib_module_names)


@lru_cache(maxsize=1024)
def names_of_the_code(
    texts: Sequence[str], setup: str, entry_point: str | None, listed: tuple[str, ...]
) -> tuple[str, ...]:
    """The names that come from the code: the entry point and those listed; without an entry point also every name in
    `texts` that neither they, nor the set-up, nor Python define."""
    certain = {*listed, *([entry_point] if entry_point else [])}
    return tuple(sorted(certain if entry_point else certain | _free(texts, setup)))


@lru_cache(maxsize=1024)
def unknown_names(texts: Sequence[str], setup: str, entry_point: str | None, listed: tuple[str, ...]) -> list[str]:
    """Names that tests use, that are not defined anywhere, and that are not the code's: without an entry point those
    by which tests decide, which code could then define as it likes."""
    free = _free(texts, setup) - KNOWN - {entry_point, *listed}
    return sorted(free if entry_point else filter(_is_of_tests, free))


@lru_cache(maxsize=1024)
def names_of_python(
    texts: Sequence[str], setup: str, entry_point: str | None, listed: tuple[str, ...]
) -> tuple[str, ...]:
    """The names that tests use of Python's, without an import: its own, and its modules, of which they name a
    member."""
    nodes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    modules = {node.value.id for node in nodes if isinstance(node.value, ast.Name)} & sys.stdlib_module_names
    return tuple(sorted(_unbound(texts, setup) & (OF_PYTHON | modules) - {entry_point, *listed}))


def _is_of_tests(name: str) -> bool:
    return name.startswith(("assert", "expect")) or name in ("Test", "pytest", "unittest", "np", "numpy")


@lru_cache(maxsize=8192)
def bound_by(text: str) -> frozenset[str]:
    """The names that a test has as its own for those after it: what it binds at its top level or declares global, but
    for what it only takes from the code by the same name."""
    taken = Counter(_taken_from_the_solution(text))
    bound = Counter(name for node in ast.walk(ast.parse(text)) for name in names_bound_by(node))
    return frozenset(name for name in _bound_in(text) if not 0 < bound[name] <= taken[name])


@lru_cache(maxsize=8192)
def left_by(text: str) -> frozenset[str]:
    """The names that a test leaves though it fails: those that it only imports or defines, and those that hooks of its
    suites set for others."""
    nodes = list(ast.walk(ast.parse(text)))
    defined = {node.name for node in nodes if isinstance(node, Definition)}
    imported = {name for node in nodes if isinstance(node, ast.alias) for name in names_bound_by(node)}
    assigned = {node.id for node in nodes if is_name(node) and isinstance(node.ctx, ast.Store)}
    assigned |= {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    hooks = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in FOR_ALL]
    shared = {name for hook in hooks for node in ast.walk(hook) if isinstance(node, ast.Global) for name in node.names}
    return frozenset((defined | imported | {*names_of_stars(nodes)}) - assigned | shared)


def _free(texts: Sequence[str], setup: str) -> set[str]:
    taken = {name for text in texts for name in _taken_from_the_solution(text)}
    members = {name for text in texts for name in _members_of_the_solution(text)}
    used = _unbound(texts, setup) | members.difference(*map(bound_by, texts))
    return (used | taken | _bound_anew(texts, setup)) - OF_PYTHON - {"__builtins__", "__name__", "__file__", "solution"}


def _bound_anew(texts: Sequence[str], setup: str) -> set[str]:
    """The names that tests read before they bind them themselves: `median = median([1, 2])`."""
    statements = [one for text in (setup, *texts) for one in ast.parse(text).body]
    targets = {
        target.id for one in statements if isinstance(one, ast.Assign) for target in one.targets if is_name(target)
    }
    defined = {one.name for one in statements if isinstance(one, ast.FunctionDef)}
    stars = names_of_stars(node for one in statements for node in ast.walk(one))
    return read_before_bound(statements) & (targets | defined) - set(stars)


def _unbound(texts: Sequence[str], setup: str) -> set[str]:
    used: set[str] = set()
    bound: set[str] = set()
    for text in (*texts, setup):
        for symbol, is_global, at_the_top in _symbols(symtable.symtable(text, "tests", "exec"), top=True):
            if symbol.is_referenced() and (at_the_top or is_global):
                used.add(symbol.get_name())
        bound.update(_bound_in(text))
        used |= read_by_classes([ast.parse(text)])
    return used - bound


def _bound_in(text: str) -> Iterator[str]:
    for symbol, _, at_the_top in _symbols(symtable.symtable(text, "tests", "exec"), top=True):
        if (symbol.is_assigned() or symbol.is_imported()) and (at_the_top or symbol.is_declared_global()):
            yield symbol.get_name()
    yield from names_of_stars(ast.walk(ast.parse(text)))


def _symbols(table: symtable.SymbolTable, *, top: bool) -> Iterator[tuple[symtable.Symbol, bool, bool]]:
    yield from ((symbol, symbol.is_global(), top) for symbol in table.get_symbols())
    for child in table.get_children():
        yield from _symbols(child, top=False)


def _taken_from_the_solution(text: str) -> Iterator[str]:
    """`from solution import add`, and `add = solution.add`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.ImportFrom(module="solution", names=aliases):
                yield from (alias.name for alias in aliases if alias.asname in (None, alias.name))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(value=ast.Name("solution"), attr=member)):
                yield from [name] if name == member else []


def _members_of_the_solution(text: str) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(text)))
    modules = {"solution"} | {called for called, name in imported_names(nodes) if name == "solution"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield node.attr
