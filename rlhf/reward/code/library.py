"""Static analysis: what tests use of Python's library, and whether it is the same apart from the code.

A member of a library is used apart from the code only if it is listed here: it computes, and neither observes nor
changes the process that it runs in, which the code does not share. What runs text is refused when it runs
(`checking/guard.py`).
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import ModuleType

PURE = """
    abc array ast base64 binascii bisect calendar cmath collections colorsys copy csv datetime decimal difflib
    dataclasses enum errno fnmatch fractions functools graphlib hashlib heapq hmac html inspect ipaddress itertools
    json keyword math numbers operator platform pprint queue re secrets shlex solution statistics string struct
    textwrap timeit traceback types typing typing_extensions unicodedata uuid xml zlib zoneinfo
    urllib.parse numpy scipy sympy sqlite3 __future__
"""
"""Modules all of whose members are used."""
MEMBERS = {
    "asyncio": "gather run sleep wait_for",
    "builtins": "sum min max abs len sorted range map filter zip enumerate list dict set frozenset tuple int float str",
    "bz2": "compress decompress",
    "codecs": "encode decode",
    "contextlib": "ExitStack closing contextmanager nullcontext suppress",
    "gzip": "compress decompress",
    "io": "BytesIO StringIO",
    "lzma": "compress decompress",
    "logging": "CRITICAL DEBUG ERROR FATAL INFO WARNING basicConfig disable",
    "os": "linesep sep path.basename path.commonprefix path.dirname path.isabs path.join path.normpath path.split "
    "path.splitext",
    "pytest": "approx fail mark param raises skip",
    "random": "Random betavariate choice choices expovariate gauss getrandbits normalvariate randbytes randint random "
    "randrange sample seed shuffle triangular uniform",
    "signal": "ITIMER_REAL SIGALRM alarm setitimer signal",
    "sys": "byteorder exit float_info hash_info int_info maxsize maxunicode set_int_max_str_digits "
    "setrecursionlimit version version_info",
    "time": "asctime ctime gmtime localtime mktime monotonic monotonic_ns perf_counter perf_counter_ns sleep strftime "
    "strptime struct_time time time_ns",
    "unittest": "IsolatedAsyncioTestCase TestCase TestSuite expectedFailure main skip suite._DebugResult",
}
"""Members that are used of other modules."""
STARRED = (sys.stdlib_module_names & {*PURE.split(), *MEMBERS}) - {"builtins"}
LISTED = frozenset((*PURE.split(), *(f"{name}.{member}" for name, them in MEMBERS.items() for member in them.split())))
OBSERVES = frozenset(("assertLogs", "assertNoLogs", "assertWarns", "assertWarnsRegex", "__cause__", "__context__"))
"""Methods of a listed class that observe the process, and attributes of exceptions that are not the code's."""
NOT_LISTED = """
    calendar.setfirstweekday csv.field_size_limit csv.register_dialect csv.unregister_dialect inspect.currentframe
    inspect.getattr_static inspect.stack inspect.trace numpy.printoptions numpy.set_printoptions numpy.setbufsize
    numpy.seterrcall numpy.testing.assert_no_gc_cycles numpy.testing.assert_no_warnings numpy.testing.assert_warns
    numpy.testing.clear_and_catch_warnings numpy.testing.suppress_warnings operator.length_hint scipy.special.errstate
    scipy.special.seterr sqlite3.connect sqlite3.register_adapter sqlite3.register_converter string.Formatter
    sympy.assuming sympy.evaluate sympy.init_printing uuid.getnode xml.etree.ElementTree.register_namespace
"""
"""Members of listed modules that observe or change the process, or its files."""
EXCEPTED = frozenset(NOT_LISTED.split())
QUIET = {"warnings.filterwarnings": "ignore", "warnings.simplefilter": "ignore", "sqlite3.connect": ":memory:"}
"""Functions that neither change nor share anything that the code has, where this is their first argument."""
BY_NAME = ("operator.attrgetter", "operator.methodcaller")
"""Functions that reach what is named. Tests write the names themselves."""
OF_TESTS_ALONE = ("unittest", "pytest")
"""Modules that tests may change: the code's own are nothing to them."""
OF_OBJECT = ("__new__", "__init__", "__init_subclass__")
"""Methods of `object` that tests call themselves. The others say of an object of the code what they say of any."""
OF_THE_PROCESS = ("open", "__import__", "breakpoint", "input", "globals", "locals")
"""Python's own functions that are not the same apart from the code."""


@lru_cache(maxsize=1024)
def not_apart(texts: Sequence[str], setup: str = "", entry_point: str | None = None) -> tuple[str, ...]:
    """For each test why it cannot run apart from the code, empty where it can. What the set-up does, every test
    does."""
    trees = [ast.parse(text) for text in (*texts, setup)]
    nodes = [node for tree in trees for node in walk_run(tree)]
    library = _Library(nodes, entry_point)
    *found, of_all = ["".join([*library.refused(tree)][:1]) for tree in trees]
    return tuple(of_all or one for one in found)


class _Library:
    """The library as the tests and their set-up name it, together."""

    def __init__(self, nodes: list[ast.AST], entry_point: str | None) -> None:
        self._own = {name for node in nodes for name in _binds(node)}
        by_stars = {name: of for name, of in names_of_stars(nodes).items() if name not in self._own}
        self._imported = by_stars | dict(imported_names(nodes))
        self._modules = sys.stdlib_module_names - self._own - {entry_point}

    def refused(self, tree: ast.Module) -> Iterator[str]:
        """What in a test cannot run apart from the code."""
        nodes = list(walk_run(tree))
        inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        inner |= {id(node.func) for node in nodes if isinstance(node, ast.Call) and self._is_quiet(node)}
        inner |= {id(part) for node in nodes if isinstance(node, ast.Call) for part in self._printed_to(node)}
        if any(map(_is_rewritten, nodes[sum(1 for _ in ast.walk(tree)) :])):
            yield "they run a text that asks for types, formats or matches"
        for node in nodes:
            outer = isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner
            if outer and (path := self._path(node)) and not _is_listed(path):  # type: ignore[arg-type]
                yield f"they use {path}, which acts on or observes the process that it runs in"
            if (changed := _changed(node)) and (path := self._path(changed)) and not path.startswith(OF_TESTS_ALONE):
                yield f"they may change {path}, which the code has for itself"
            stars = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
            if stars and not _is_listed(of := str(node.module)) and of not in (*STARRED, "builtins"):  # type: ignore[attr-defined]
                yield f"they import all of {of}"
            if isinstance(node, ast.Attribute) and node.attr in OBSERVES:
                yield f"they use {node.attr}, which observes the process that it runs in"
            if _is_of_object(node):
                yield f"they use {ast.unparse(node)}, which tells nothing of an object of the code"
            if isinstance(node, ast.Call) and self._reaches(node):
                yield f"they may reach what the code names, by {ast.unparse(node.func)}"

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
        path = self._imported.get(node.id, node.id if members and node.id in self._modules else "")
        return ".".join([path, *members]) if path else ""

    def _is_quiet(self, call: ast.Call) -> bool:
        first = call.args[0] if call.args else None
        return isinstance(first, ast.Constant) and first.value == QUIET.get(self._path(call.func), ...)

    def _printed_to(self, call: ast.Call) -> Iterator[ast.expr]:
        """Where a test prints, which it does nowhere."""
        if self._path(call.func) in ("sys.stdout.flush", "sys.stderr.flush"):
            yield call.func
        if isinstance(call.func, ast.Name) and call.func.id == "print":
            streams = (one.value for one in call.keywords if one.arg == "file")
            yield from (one for one in streams if self._path(one) in ("sys.stdout", "sys.stderr"))

    def _reaches(self, call: ast.Call) -> bool:
        """Whether a call makes a function that reaches what is named, and the test does not write the name."""
        makes = isinstance(call.func, ast.Name | ast.Attribute) and self._path(call.func) in BY_NAME
        names = [name.value for name in call.args if isinstance(name, ast.Constant)]
        return makes and (len(names) < len(call.args) or any("__class__" in str(name) for name in names))


def walk_run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a test, and then those of the constants that it hands to `eval`, `exec` or `compile`."""
    yield from ast.walk(tree)
    for inner in _constants_run(tree):
        yield from walk_run(inner)


def constants_run(text: str) -> list[str]:
    """The constants that a test runs."""
    return [ast.unparse(inner) for inner in _constants_run(ast.parse(text))]


def _constants_run(tree: ast.AST) -> Iterator[ast.Module]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile"), args=[ast.Constant(value=str(text)), *_]):
                with contextlib.suppress(SyntaxError, ValueError):  # the test fails over it
                    yield ast.parse(text.strip())


def _is_of_object(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="object"), attr=name):
            return name not in OF_OBJECT
        case _:
            return False


def _changed(node: ast.AST) -> ast.expr | None:
    """What a test may change, if it does: sets an attribute of, deletes one, asks for all."""
    match node:
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()) | ast.Attribute(value=value, attr="__dict__"):
            return value
        case ast.Call(func=ast.Name(id="setattr" | "delattr" | "vars"), args=[value, *_]):
            return value
        case _:
            return None


def _is_rewritten(node: ast.AST) -> bool:
    """Whether the judge would rewrite it in a test (`checking/rewrite.py`)."""
    named = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return isinstance(node, ast.Match) or named in ("type", "__class__", "format", "format_map")


def names_of_stars(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The names that `from … import *` of modules of the library that are listed, or members of which are, bind, and
    what each is. Python's own names are there anyway."""
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


def _is_listed(path: str) -> bool:
    parts = path.split(".")
    listed = any(".".join(parts[:end]) in LISTED for end in range(1, len(parts) + 1))
    return listed and path not in EXCEPTED and not _is_another_module(*parts[:2])


def _is_another_module(library: str, member: str = "") -> bool:
    """Whether a module of the library has it only because it imports it: `inspect.sys`."""
    found = getattr(importlib.import_module(library), member, None) if library in STARRED and member else None
    if not isinstance(found, ModuleType) or found.__name__ in LISTED:
        return False
    within = f"{library}.{member}."
    return found.__name__ != within[:-1] and not any(listed.startswith(within) for listed in LISTED)
