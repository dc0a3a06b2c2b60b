"""Static analysis: which tests cannot run apart from the code.

In a process of their own tests may use what is listed here: it computes. What else they do to their process (replace a
function of the library, capture what is printed, open a file, run a text) would not be done to the code's.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

WHOLE = """
    abc array ast base64 binascii bisect calendar cmath collections colorsys copy csv datetime decimal difflib
    enum errno fnmatch fractions functools graphlib hashlib heapq hmac html ipaddress itertools
    json keyword math numbers numpy operator pprint queue random re secrets shlex solution statistics string struct
    textwrap time types typing typing_extensions unicodedata uuid zlib urllib.parse __future__
"""
"""Modules all of whose members are used."""
MEMBERS = {
    "asyncio": "gather run sleep wait_for",
    "dataclasses": "FrozenInstanceError InitVar KW_ONLY dataclass field make_dataclass",
    "contextlib": "ExitStack closing contextmanager nullcontext suppress",
    "io": "BytesIO StringIO",
    "logging": "CRITICAL DEBUG ERROR FATAL INFO WARNING basicConfig disable",
    "os": "linesep sep path.basename path.commonprefix path.dirname path.isabs path.join path.normpath path.split "
    "path.splitext",
    "pytest": "approx fail mark param raises skip",
    "sys": "byteorder exit float_info hash_info int_info maxsize maxunicode "
    "setrecursionlimit stderr stdout version version_info",
    "unittest": "IsolatedAsyncioTestCase TestCase TestSuite expectedFailure main skip suite._DebugResult",
    "warnings": "filterwarnings simplefilter",
}
"""Members that are used of other modules."""
LISTED = frozenset((*WHOLE.split(), *(f"{name}.{member}" for name, them in MEMBERS.items() for member in them.split())))
STARRED = frozenset({*WHOLE.split(), *MEMBERS} & sys.stdlib_module_names)
IMPORTED_WHOLE = STARRED | {"builtins", "solution"}
WARNINGS = ("warnings.filterwarnings", "warnings.simplefilter")
BY_NAME = ("operator.attrgetter", "operator.methodcaller")
SET = frozenset(
    (
        *("calendar.setfirstweekday", "decimal.getcontext", "decimal.setcontext", "decimal.localcontext"),
        *("numpy.errstate", "numpy.seterr", "numpy.seterrcall", "numpy.random.seed", "string.Formatter"),
        *("operator.is_", "operator.is_not", "random.setstate", "numpy.random.set_state", "numpy.set_printoptions"),
        *("csv.register_dialect", "csv.unregister_dialect", "csv.field_size_limit", "urllib.parse.uses_netloc"),
    )
)
"""Members of listed modules that set for their process how it computes, or compare what is not the code's own."""
OBSERVE = frozenset(
    (
        *("assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex", "__cause__", "__context__"),
        *("__suppress_context__", "__traceback__", "__notes__", "add_note"),
    )
)
"""What observes the process, and attributes of exceptions that do not cross."""
OF_TESTS_ALONE = ("unittest", "pytest")
"""Modules that tests may change: the code's own are nothing to them."""
OF_THE_PROCESS = frozenset(
    (
        "__builtins__",
        "eval",
        "exec",
        "compile",
        "open",
        "__import__",
        "breakpoint",
        "input",
        "globals",
        "locals",
        "vars",
        "setattr",
    )
)
"""Python's own functions that run what they are given, or act on the process."""


@lru_cache(maxsize=1024)
def not_apart(texts: Sequence[str], setup: str = "", entry_point: str | None = None) -> tuple[str, ...]:
    """For each test why it cannot run apart from the code, empty where it can. What the set-up does, every test
    does, and what a star brings, every test may use."""
    trees = [ast.parse(text) for text in (*texts, setup)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    library = _Library(nodes, entry_point)
    *found, of_setup = [next(library.refused(tree), "") for tree in trees]
    of_all = of_setup or next(_unlisted_stars(nodes), "")
    return tuple(of_all or one for one in found)


class _Library:
    """The library as the tests and their set-up name it, together."""

    def __init__(self, nodes: list[ast.AST], entry_point: str | None) -> None:
        self._own = {name for node in nodes for name in _binds(node)} | {entry_point or ""}
        by_stars = {name: of for name, of in names_of_stars(nodes).items() if name not in self._own}
        self._imported = by_stars | dict(imported_names(nodes))

    def refused(self, tree: ast.Module) -> Iterator[str]:
        """What in a test cannot run apart from the code."""
        nodes = list(ast.walk(tree))
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        of_written_names = {id(call.func) for call in calls if all(map(_is_written, call.args))}
        for node in nodes:
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner:
                path = self._path(node)
                if path and isinstance(node.ctx, ast.Store | ast.Del) and not path.startswith(OF_TESTS_ALONE):
                    yield f"they change {path}, which the code has for itself"
                elif path in BY_NAME and id(node) not in of_written_names:
                    yield f"they may reach what the code names, by {path}"
                elif path and not _is_listed(path):
                    yield f"they use {path}, which acts on or observes the process that it runs in"
            if isinstance(node, ast.Attribute) and node.attr in OBSERVE:
                yield f"they use {node.attr}, which tells of the process that it runs in"
            if isinstance(node, ast.Call) and self._path(node.func) in WARNINGS and not _is_ignored(node):
                yield f"they use {ast.unparse(node)}, which changes the process that it runs in"
            if isinstance(node, ast.Compare) and len(node.ops) > 1 and _asks_identity(node):
                yield f"they ask whether {ast.unparse(node)}"
            if what := _named_by(node):
                yield f"they may reach what the code names, by {what}"

    def _path(self, node: ast.expr) -> str:
        """The full name of what a test uses of a library; empty for anything else."""
        members: list[str] = []
        while isinstance(node, ast.Attribute):
            members.insert(0, node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            return ""
        if node.id in OF_THE_PROCESS and node.id not in self._own:
            return f"builtins.{node.id}"
        is_module = members and node.id in sys.stdlib_module_names and node.id not in self._own
        path = self._imported.get(node.id, node.id if is_module else "")
        return ".".join([path, *members]) if path else ""


def _unlisted_stars(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Imports of whatever a module has: nobody can tell which names of the tests are the code's."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and str(node.module) not in IMPORTED_WHOLE:
            yield f"they import all of {node.module}"


def _asks_identity(node: ast.Compare) -> bool:
    return any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops)


def _named_by(node: ast.AST) -> str:
    """What reaches attributes by names, or by a text that names them, which the test does not write itself."""
    match node:
        case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, name, *_]) if not _is_written(name):
            return ast.unparse(node)
        case ast.Attribute(attr="__getattribute__"):
            return ast.unparse(node)
        case ast.Attribute(value=text, attr="format" | "format_map") if not _is_written(text):
            return ast.unparse(node)
        case _:
            return ""


def _is_written(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.JoinedStr)


def names_of_stars(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The names that `from … import *` of listed modules of the library bind, and what each is."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*" and node.module in STARRED:
            module = importlib.import_module(node.module)
            public = [name for name in dir(module) if not name.startswith("_")]
            found.update((name, f"{node.module}.{name}") for name in getattr(module, "__all__", public))
    return found


def imported_names(nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    """The names that imports bind, and what each is."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _binds(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg


def _is_ignored(call: ast.Call) -> bool:
    return bool(call.args) and ast.unparse(call.args[0]) == "'ignore'"


def _is_listed(path: str) -> bool:
    parts = path.split(".")
    return path not in SET and any(".".join(parts[:end]) in LISTED for end in range(1, len(parts) + 1))
