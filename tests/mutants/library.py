"""The mutants that mutmut's operators make of the functions of a module.

mutmut's own runner is not used: it mutates undecorated functions alone (a third of ours are properties), runs in a
copy of the project with a trampoline in each function, and chooses its tests for the whole project. Its operators are a
table of plain functions over libcst's nodes, and those are what matters.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "mutants.txt"
INSTALL_SECONDS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one function: the line as it `was` and as it `is_`, and the function's new `code`."""

    function: str
    was: str
    is_: str
    code: CodeType


def provide() -> None:
    """Put the pinned library on the path; the first time it is installed, beside `.venv` and not into it."""
    folder = ROOT / f".venv-mutants-{hashlib.sha256(PINS.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        half = folder.with_name(f"{folder.name}.half")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(half), "--upgrade", "-r", str(PINS)], check=True, timeout=INSTALL_SECONDS)
        half.rename(folder)
    sys.path.append(str(folder))


def mutants_of(source: str, file: str) -> Iterator[Mutant]:
    """Every mutant of every function of `source` whose compiled code differs from the original's."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    wrapper = MetadataWrapper(libcst.parse_module(source), unsafe_skip_copy=True)
    positions = wrapper.resolve(PositionProvider)
    module, before = wrapper.module, codes(source, file)
    for function, node in _nodes(module):
        for kind, operator in mutation_operators:
            if not isinstance(node, kind):
                continue
            for changed in operator(node):
                text = module.deep_replace(node, changed).code
                try:
                    after = codes(text, file)
                except SyntaxError:
                    continue
                if _bare(after[function]) != _bare(before[function]) and _lenient(text) != _lenient(source):
                    was, is_ = _lines(source, text, positions[node].start.line)
                    yield Mutant(function=function, was=was, is_=is_, code=after[function])


def codes(source: str, file: str) -> dict[str, CodeType]:
    """The code of every function of a module and of its classes, by its qualified name."""
    found: dict[str, CodeType] = {}
    _collect(compile(source, file, "exec"), found)
    return found


def _collect(code: CodeType, found: dict[str, CodeType]) -> None:
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and "<" not in inner.co_qualname:
            if _is_class(inner):
                _collect(inner, found)
            else:
                found[inner.co_qualname] = inner


def _is_class(code: CodeType) -> bool:
    """The body of a class begins by saying its module's name."""
    return code.co_names[:2] == ("__name__", "__module__")


def _nodes(module: Any) -> Iterator[tuple[str, Any]]:
    """The nodes of all function bodies, each with its function. Left out is what changes nothing that is computed:
    annotations, docstrings, what errors say, and `strict` of a `zip`."""
    import libcst

    class Walk(libcst.CSTVisitor):
        def __init__(self) -> None:
            self.scopes: list[str] = []
            self.depth, self.silent = 0, 0
            self.found: list[tuple[str, Any]] = []

        def on_visit(self, node: libcst.CSTNode) -> bool:
            if isinstance(node, libcst.Annotation | libcst.Parameters | libcst.Decorator):
                return False
            if isinstance(node, libcst.Arg) and node.keyword is not None and node.keyword.value == "strict":
                return False  # see also `_lenient`
            if isinstance(node, libcst.ClassDef | libcst.FunctionDef) and not self.depth:
                self.scopes.append(node.name.value)
            if isinstance(node, libcst.FunctionDef):
                self.depth += 1
            self.silent += isinstance(node, libcst.Raise)
            told = isinstance(node, libcst.BaseString | libcst.FormattedStringExpression) and self.silent
            if self.depth and not told:
                self.found.append((".".join(self.scopes), node))
            return not isinstance(node, libcst.FormattedString) or not self.silent

        def on_leave(self, node: libcst.CSTNode) -> None:
            if isinstance(node, libcst.FunctionDef):
                self.depth -= 1
            if isinstance(node, libcst.ClassDef | libcst.FunctionDef) and not self.depth:
                self.scopes.pop()
            self.silent -= isinstance(node, libcst.Raise)

    walk = Walk()
    module.visit(walk)
    return iter(walk.found)


def _bare(code: CodeType) -> tuple[Any, ...]:
    """A code without its line numbers."""
    constants = tuple(_bare(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return (code.co_code, code.co_names, code.co_varnames, constants)


def _lenient(source: str) -> str:
    """The source without `strict`, at the end of a `zip`'s arguments: it changes nothing of pairs that fit."""
    return re.sub(r",\s*(strict=\w+)?\s*\)", ")", source)


def _lines(before: str, after: str, line: int) -> tuple[str, str]:
    """The first line from `line` on that differs, in both."""
    for was, is_ in zip(before.splitlines()[line - 1 :], after.splitlines()[line - 1 :], strict=False):
        if was != is_:
            return was.strip(), is_.strip()
    raise AssertionError("a mutant differs from its original")
