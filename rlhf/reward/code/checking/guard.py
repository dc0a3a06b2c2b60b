"""Refuse, in the process of the tests, whatever would run what the code answers: text, bytes, commands.

Python reports such operations to audit hooks (PEP 578), by whatever name or library they are reached, and a hook cannot
be removed. The code's own text runs in another process.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import sys
import typing
from collections.abc import Iterable
from importlib.machinery import SourceFileLoader
from timeit import template  # type: ignore[attr-defined]
from types import FrameType
from typing import Any, NamedTuple

from rlhf.reward.code.checking.link import Link
from rlhf.reward.code.checking.questions import is_instance, type_of
from rlhf.reward.code.checking.stand_ins import STAND_INS

RUN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn", "subprocess.Popen")
"""The events that start a process."""
MAKE = (
    *("ctypes.", "code.__new__", "pickle.find_class", "marshal.load", "cpython.", "sys.setprofile", "sys.settrace"),
    *("sqlite3.enable_load_extension", "sqlite3.load_extension"),
)
"""The events, or their beginnings, that make code or call what has a name. Loading a library does so too."""
FORMATS = "_rlhf_formatting"
EXEC_MODULE = SourceFileLoader.exec_module.__code__
PROCESS_CLASS = dataclasses._process_class.__code__  # type: ignore[attr-defined]
TIMED = {
    "pass",
    template.format(stmt="_stmt()", setup="pass", init=", _stmt=_stmt"),
    template.format(stmt="_stmt()", setup="_setup()", init=", _setup=_setup, _stmt=_stmt"),
}
"""What `timeit` compiles in order to call functions."""


class TextsRun(NamedTuple):
    """The texts that tests run themselves, and those that `typing` may run for them."""

    texts: frozenset[str | None]
    annotations: frozenset[str | None]


def guard(link: Link, run: TextsRun) -> None:
    """From here on, what runs text, bytes or a command ends the conversation with the code: the test that does it and
    all after it fail. Allowed are texts that tests `run` themselves, modules in the folders that
    modules come from at this moment, and functions of the library that build on names which they have checked."""
    folders = tuple(os.path.join(os.path.realpath(path), "") for path in sys.path)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "compile":
            by_typing = sys._getframe(1).f_globals is vars(typing)
            text, allowed = _text(given[0]), run.annotations if by_typing else run.texts
            refused = text not in allowed and not _builds(sys._getframe(1))
        elif event == "import":
            refused = given[1] is not None and not _within(given[1], folders)
        else:
            refused = event.startswith(MAKE)
        if event.startswith(RUN) or (refused and not _loads_a_library(sys._getframe(1), folders)):
            link.stop(f"the tests run what the code answers ({event})")

    sys.addaudithook(hook)


def run_in(texts: Iterable[ast.Module]) -> TextsRun:
    """The constants that the tests and the set-up run themselves, and those of their annotations. Not all constants: an
    answer could be one that names what is expected."""
    run: list[ast.AST] = []
    annotations: list[ast.AST | None] = []
    for node in (node for text in texts for node in ast.walk(text)):
        match node:
            case ast.Call(func=ast.Name(id="eval" | "exec" | "compile"), args=[ast.Constant() as constant, *_]):
                run.append(constant)
            case ast.arg(annotation=annotation) | ast.AnnAssign(annotation=annotation):
                annotations.append(annotation)
            case ast.FunctionDef(returns=annotation) | ast.AsyncFunctionDef(returns=annotation):
                annotations.append(annotation)
    return TextsRun(texts_in(run) | TIMED, texts_in(annotation for annotation in annotations if annotation))


def texts_in(nodes: Iterable[ast.AST]) -> frozenset[str | None]:
    """The constants of syntax trees that are texts."""
    constants = {inner.value for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
    found = {text for constant in constants if (text := _text(constant)) is not None}
    return frozenset(found | {text.lstrip(" \t") for text in found})  # as `eval` reads them


def reaching(link: Link, written: frozenset[str | None]) -> dict[str, Any]:
    """What tests get for Python's functions that reach what is named, under their names, and as `FORMATS` for methods
    of texts that do. An answer names nothing: the names are `written`, or those of an object of the code."""

    def checked(function: Any) -> Any:
        def reach(of: Any, name: Any, *value: Any) -> Any:
            if type(of) not in STAND_INS.values() and name not in written:
                link.refuse("a test reaches what it does not name itself")
            return type_of(of) if function is getattr and name == "__class__" else function(of, name, *value)

        return reach

    def formatting(of: Any, name: str) -> Any:
        if of is str or (issubclass(type(of), str) and (type(of) is not str or of not in written)):
            link.refuse("a test formats with a text that it does not write itself")
        return getattr(of, name)

    named = {function.__name__: checked(function) for function in (getattr, setattr, delattr)}
    return named | {FORMATS: formatting, "isinstance": is_instance}


def _text(source: Any) -> str | None:
    """The text that is compiled; None for a syntax tree."""
    if type(source) is bytes:
        return source.decode(errors="surrogateescape")
    return source if type(source) is str else None


def _builds(frame: FrameType) -> bool:
    """Whether the library compiles without running the text, or compiles only names that it has checked."""
    if frame.f_code is ast.parse.__code__ or frame.f_code is collections.namedtuple.__code__:
        return True
    if frame.f_globals is not vars(dataclasses):
        return False
    of_class: FrameType | None = frame
    while of_class and of_class.f_code is not PROCESS_CLASS:
        of_class = of_class.f_back
    return of_class is not None and all(str.isidentifier(name) for name in of_class.f_locals["fields"])


def _loads_a_library(frame: FrameType | None, folders: tuple[str, ...]) -> bool:
    """Whether the interpreter is loading a module of one of the folders, and the tests only wait for it."""
    while frame and frame.f_globals.get("__name__") != "tests":
        if frame.f_code is EXEC_MODULE:
            return _within(frame.f_locals["module"].__spec__.origin, folders)
        frame = frame.f_back
    return False


def _within(file: str, folders: tuple[str, ...]) -> bool:
    return os.path.realpath(file).startswith(folders)
