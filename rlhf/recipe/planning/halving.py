"""Find the quickest settings in few trials: setting by setting, of the quicker half of what was tried so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rlhf.recipe.planning.fitting import Changes

FIRST_UPDATES, MORE_UPDATES = 2, 2
"""Updates that are measured in a trial of the first setting, and how many more of each later one."""
FINALISTS = 2
"""Those with which the next setting is tried, and that are measured once more at the end if trials are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Overrides, and the seconds of an update in the mean of so many; None where the run failed, and why."""

    changes: Changes
    updates: int
    seconds: float | None
    failure: str = ""

    @property
    def rank(self) -> float:
        return float("inf") if self.seconds is None else self.seconds


Measure = Callable[[Changes, int], TrialResult]
"""Runs a recipe with these overrides for so many updates after the first."""


def halved(axes: Sequence[Sequence[Changes]], measure: Measure, trials: int) -> Iterator[TrialResult]:
    """Iterate over the results of at most so many trials. Each of the `axes` has changes of one kind, and is tried with
    the quicker half of the candidates before it; the first candidate is the recipe as it is."""
    tried = [measure({}, FIRST_UPDATES)]
    yield tried[0]
    left, updates = trials - 1, FIRST_UPDATES
    for number, axis in enumerate(axes):
        parents = tried[: 1 if number > 1 else FINALISTS] if number else tried
        for changes in [{**one.changes, **change} for one in parents for change in axis][:left]:
            tried.append(measure(changes, updates))
            left -= 1
            yield tried[-1]
        half = max(FINALISTS, len(tried) // 2)
        tried, updates = sorted(tried, key=lambda one: one.rank)[:half], updates + MORE_UPDATES
    if left >= FINALISTS:
        for one in tried[:FINALISTS]:
            yield measure(one.changes, updates)


def quickest(results: Sequence[TrialResult]) -> TrialResult | None:
    """Return the quickest, each by its longest trial; None if every trial failed."""
    newest = {tuple(sorted(one.changes.items())): one for one in results if one.seconds is not None}
    return min(newest.values(), key=lambda one: one.rank, default=None)
