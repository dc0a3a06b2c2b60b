"""Plants the faults of ours, each in a copy of the tree, several at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.planted import Fault, Rotten
from tests.mutants.trees import ROOT, Outcome, Tree

CLEAN_SECONDS = 600.0
"""For the tests of one fault, without it."""


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
