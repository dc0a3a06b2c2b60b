"""Copies of the working tree in which faults are planted, and their tests run."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.planted import Fault, Rotten, planted

ROOT = Path(__file__).parents[2]
FACTOR, LEAST_SECONDS = 6.0, 60.0
"""A faulty run is given up after so many times what its tests take without a fault, and never before so long."""
CLEAN_SECONDS = 600.0
"""For the tests of one fault, without it."""
FIRST_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How tests ended: `failed` names the first that did not pass (or what else ended them), empty when all did."""

    failed: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the working tree."""

    path: Path

    @classmethod
    def copy(cls, root: Path, place: Path) -> Tree:
        """Everything that git would keep, as it is on disk."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, timeout=60,
        ).stdout  # fmt: skip
        tree = place / "tree"
        for name in filter(None, listed.decode().split("\0")):
            if (source := root / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, tree / name)
        return cls(tree)

    def with_fault(self, fault: Fault, clean: Outcome) -> Outcome:
        """What the fault's tests say of it, `clean` being what they say without."""
        path = self.path / fault.file
        before, after = path.read_text(), planted(fault, self.path)
        path.write_text(after)
        try:
            return self.tested(fault.tests, max(LEAST_SECONDS, FACTOR * clean.seconds))
        finally:
            path.write_text(before)

    def tested(self, tests: tuple[str, ...], limit_seconds: float) -> Outcome:
        """Run `tests` until the first fails. Raises `Rotten` when pytest cannot."""
        began = time.monotonic()
        # Two texts of one length, written within a second of one another, would share their compiled file.
        environment = os.environ | {"PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not gpu", "-p", "no:cacheprovider", *tests],
            cwd=self.path, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            return Outcome(failed=f"no end within {limit_seconds:.0f} s", seconds=limit_seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)
        seconds = time.monotonic() - began
        if process.returncode in (4, 5):
            raise Rotten(f"pytest cannot run {' '.join(tests)}: {said[-300:]}")
        if process.returncode == 0:
            return Outcome(failed="", seconds=seconds)
        found = FIRST_FAILURE.search(said)
        return Outcome(failed=found[1] if found else f"pytest's exit code {process.returncode}", seconds=seconds)


def plant_all(faults: Sequence[Fault], jobs: int, place: Path) -> Iterator[tuple[Fault, Outcome]]:
    """Every fault with what its tests said, in the order of the list. Raises `Rotten` for tests that fail without."""
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for number in range(jobs):
        trees.put(Tree.copy(ROOT, place / str(number)))
    clean: dict[tuple[str, ...], Outcome] = {}

    def plant(fault: Fault) -> Outcome:
        tree = trees.get()
        try:
            if fault.tests not in clean:
                clean[fault.tests] = tree.tested(fault.tests, CLEAN_SECONDS)
            if failed := clean[fault.tests].failed:
                raise Rotten(f"{fault.name!r}: without any fault, {failed} does not pass")
            return tree.with_fault(fault, clean[fault.tests])
        finally:
            trees.put(tree)

    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(faults, pool.map(plant, faults), strict=True)
