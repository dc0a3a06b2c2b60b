"""The heart's mutants: every module's in a process of its own, and the list of those that change nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.library import ROOT, provide
from tests.mutants.planted import Rotten

LIST = Path(__file__).parent / "heart.toml"
MODULE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """A mutant that nothing can catch, because of `reason`: it computes the same."""

    function: str
    was: str
    is_: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module of the heart with the fast tests nearest to it."""

    file: str
    tests: tuple[str, ...]
    survivors: tuple[Survivor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One mutant and the first test that failed; empty when none did."""

    function: str
    was: str
    is_: str
    failed: str


def read_heart(path: Path = LIST) -> list[Module]:
    return [
        Module(
            file=entry["file"],
            tests=tuple(entry["tests"]),
            survivors=tuple(
                Survivor(function=one["function"], was=one["was"], is_=one["is"], reason=one["reason"])
                for one in entry.get("survivor", ())
            ),
        )
        for entry in tomllib.loads(path.read_text())["module"]
    ]


def heart(only: str | None, jobs: int) -> tuple[int, int, int]:
    """Mutants caught, survived, and survived without being listed. Raises `Rotten` for a list that has gone stale."""
    modules = [module for module in read_heart() if only is None or only in module.file]
    if not modules:
        return 0, 0, 0
    provide()
    caught = survived = unlisted = 0
    with ThreadPoolExecutor(jobs) as pool:
        for module, tried in zip(modules, pool.map(try_all, modules), strict=True):
            alive = [one for one in tried if not one.failed]
            listed = {(one.function, one.was, one.is_) for one in module.survivors}
            unexplained = [one for one in alive if (one.function, one.was, one.is_) not in listed]
            caught, survived = caught + len(tried) - len(alive), survived + len(alive)
            unlisted += len(unexplained)
            print(f"{module.file}: {len(tried)} mutants, {len(alive)} survived, {len(unexplained)} of them unexplained")
            for one in unexplained:
                print(f"    SURVIVED in {one.function}: {one.was}\n{'':>10}became: {one.is_}", flush=True)
            if stale := listed - {(one.function, one.was, one.is_) for one in alive}:
                raise Rotten(f"{LIST.name}: {module.file} has no such survivor any more: {sorted(stale)}")
    print(f"mutants of the heart: {caught} caught, {survived} survived: {caught / (caught + survived):.1%}", flush=True)
    return caught, survived, unlisted


def try_all(module: Module) -> list[Tried]:
    """Every mutant of a module. Raises `Rotten` where its tests fail without one."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.mutants.forked", module.file, *module.tests],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=MODULE_SECONDS,
    )  # fmt: skip
    if process.returncode != 0:
        raise Rotten(f"{module.file}: its tests cannot be run: {process.stdout[-500:]}{process.stderr[-1500:]}")
    return list(_tried(module, process.stdout))


def _tried(module: Module, said: str) -> Iterator[Tried]:
    for line in said.splitlines():
        if not line.startswith("{"):
            continue
        values = json.loads(line)
        if "error" in values:
            raise Rotten(f"{module.file}: {values['error']}")
        yield Tried(function=values["function"], was=values["was"], is_=values["is"], failed=values["failed"])
