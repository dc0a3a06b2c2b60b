"""Static analysis of tests: which names come from the code, and which tests would execute what the code returns."""

from __future__ import annotations

import ast
import builtins
import os
import symtable
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache

OF_PYTHON = frozenset(dir(builtins))
KNOWN = OF_PYTHON | set(sys.stdlib_module_names)
BY_FIRST = frozenset(
    (
        "eval",
        "exec",
        "compile",
        "__import__",
        "import_module",
        "attrgetter",
        "methodcaller",
        "sympify",
        "parse_expr",
        "loadTestsFromName",
        "loadTestsFromNames",
    )
)
BY_SECOND = frozenset(("getattr", "setattr", "delattr"))
LOADERS = frozenset(("load", "loads", "Unpickler", "safe_load", "unsafe_load"))
PICKLES = ("pickle", "_pickle", "cPickle", "multiprocessing.reduction", "dill", "cloudpickle", "joblib")
LOADED = frozenset((*PICKLES, "marshal", "shelve", "yaml"))
COMMANDS = frozenset(
    [f"os.{name}" for name in dir(os) if name.startswith(("exec", "spawn", "posix_spawn", "system", "popen"))]
    + [f"asyncio.create_subprocess_{name}" for name in ("exec", "shell")]
    + ["pty.spawn"]
    + [
        f"subprocess.{name}"
        for name in ("run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
    ]
)
EVALUATORS = frozenset(
    [f"builtins.{name}" for name in ("eval", "exec", "compile", "__import__")]
    + [f"timeit.{name}" for name in ("timeit", "repeat", "Timer")]
    + [f"{module}.{name}" for module in ("cProfile", "profile") for name in ("run", "runctx", "Profile")]
    + [f"pdb.{name}" for name in ("run", "runctx", "runeval", "Pdb")]
    + ["bdb.Bdb", "trace.Trace", "pydoc.locate", "pydoc.importfile", "pkgutil.resolve_name"]
    + [f"runpy.{name}" for name in ("run_path", "run_module")]
    + [f"code.{name}" for name in ("interact", "InteractiveInterpreter", "InteractiveConsole")]
    + [f"doctest.{name}" for name in ("testmod", "run_docstring_examples", "DocTestParser", "DocTestFinder")]
    + ["typing.get_type_hints", "numpy.load", "pandas.eval", "pandas.read_pickle", "sympy.simplify", "sympy.S"]
)
"""Functions of libraries that execute a text or a file, and the built-in ones under their full names."""
METHODS = frozenset(("eval", "exec", "compile"))
"""Python's own have no object before them, and methods of the code are run there."""
MODULES = frozenset(sys.stdlib_module_names) | {"__builtins__"}


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
    """Names that tests of a function use and that are not defined anywhere. Empty without an entry point."""
    known = KNOWN | {entry_point, *listed}
    return sorted(_free(texts, setup) - known) if entry_point else []


def _free(texts: Sequence[str], setup: str) -> set[str]:
    used: set[str] = set()
    bound: set[str] = set()
    for text in (*texts, setup):
        for symbol, is_global, at_the_top in _symbols(symtable.symtable(text, "tests", "exec"), top=True):
            if symbol.is_referenced() and (at_the_top or is_global):
                used.add(symbol.get_name())
            if (symbol.is_assigned() or symbol.is_imported()) and (at_the_top or symbol.is_declared_global()):
                bound.add(symbol.get_name())
    imported = {name for text in texts for name in _from_the_solution(text)}
    return (used - bound | imported) - OF_PYTHON - {"__name__", "__file__", "solution"}


def _symbols(table: symtable.SymbolTable, *, top: bool) -> Iterator[tuple[symtable.Symbol, bool, bool]]:
    yield from ((symbol, symbol.is_global(), top) for symbol in table.get_symbols())
    for child in table.get_children():
        yield from _symbols(child, top=False)


def _from_the_solution(text: str) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(text)))
    modules = {"solution"} | {called for called, name in _imported(nodes) if name == "solution"}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield node.attr


def _imported(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """What a text calls the modules and the members of modules that it imports, and which they are."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


@lru_cache(maxsize=4096)
def evaluates(text: str, entry_point: str | None = None) -> str:
    """What in a test might execute the code's return values in the tests' own process; empty where nothing does."""
    nodes = list(ast.walk(ast.parse(text)))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    first = {call.func for call in calls if call.args and _constant(call.args[0])}
    second = {call.func for call in calls if call.args[1:] and _constant(call.args[1])}
    loaded = any(_modules(node) & LOADED for node in nodes)
    imported = dict(_imported(nodes))
    for node in nodes:
        name, of = _name(node)
        whole = imported.get(of or name, of) + (f".{name}" if of else "")
        own = of not in imported and of not in MODULES and isinstance(node, ast.Attribute)
        if name != entry_point and (
            (name in BY_FIRST and node not in first and of != "re" and not (own and name in METHODS))
            or (name in BY_SECOND and node not in second)
            or (name in LOADERS and loaded and of != "json")
            or (whole in COMMANDS | EVALUATORS and node not in first)
            or _loads(whole)
            or (name in ("format", "format_map") and isinstance(node, ast.Attribute) and not _constant(node.value))
        ):
            return f"they may run what the code answers, by {name}"
    return ""


def _loads(whole: str) -> bool:
    module, _, name = whole.rpartition(".")
    return name in LOADERS and module.partition(".")[0] in LOADED


def _name(node: ast.AST) -> tuple[str, str]:
    """The name of a name or attribute node, and the name that it is an attribute of."""
    if isinstance(node, ast.Attribute):
        return node.attr, node.value.id if isinstance(node.value, ast.Name) else ""
    return (node.id if isinstance(node, ast.Name) else ""), ""


def _constant(node: ast.AST) -> bool:
    return not any(isinstance(inner, ast.Name | ast.Call) for inner in ast.walk(node))


def _modules(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.Name):
        return {node.id}
    return {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
