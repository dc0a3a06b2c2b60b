"""Faults of ours, as data: what is changed where, and which tests are nearest to it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"


class Rotten(Exception):
    """A list of this folder no longer fits the tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A sentence that is true of the tree once `old` is replaced by `new` in `file`. `tests` are files or node ids;
    `engine` where they start vLLM, DeepSpeed or Ray."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    engine: bool = False


def read_faults(files: str = "*.toml") -> list[Fault]:
    """The faults of the lists whose name fits `files`."""
    return [
        Fault(**{**entry, "tests": tuple(entry["tests"])})
        for path in sorted(FAULTS.glob(files))
        for entry in tomllib.loads(path.read_text())["fault"]
    ]


def planted(fault: Fault, root: Path) -> str:
    """The text of the fault's file in the tree at `root`, with the fault in it. Raises `Rotten`."""
    path = root / fault.file
    if not path.is_file():
        raise Rotten(f"{fault.name!r}: there is no file {fault.file}")
    text = path.read_text()
    if (times := text.count(fault.old)) != 1:
        raise Rotten(f"{fault.name!r}: its old text is {times} times in {fault.file}, not once: {fault.old!r}")
    return text.replace(fault.old, fault.new)


def check(faults: Iterable[Fault], root: Path) -> None:
    """Every fault can be planted, in a file that Python can still read, and its tests are there. Raises `Rotten`."""
    for fault in faults:
        try:
            compile(planted(fault, root), fault.file, "exec")
        except SyntaxError as error:
            raise Rotten(f"{fault.name!r}: with it {fault.file} is no Python: {error}") from None
        for test in fault.tests:
            file, _, inside = test.partition("::")
            if not (root / file).exists():
                raise Rotten(f"{fault.name!r}: there are no tests in {file}")
            if inside and f"def {inside.partition('[')[0]}(" not in (root / file).read_text():
                raise Rotten(f"{fault.name!r}: there is no test {inside} in {file}")
