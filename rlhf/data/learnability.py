"""Choose tasks by how much they still teach: by the recent variance of the rewards of their groups, which bounds what
an update can learn from a task (arXiv 2504.03380). One that always or never succeeds teaches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf.data.mixing import MixedOrder
from rlhf.data.order import TaskOrder
from rlhf.types import Failed, Filtered, Group

T = TypeVar("T")
FLOOR = 0.1
"""Share of the draws that is spread evenly over all tasks, so that none is forgotten."""
RECENT = 0.75
"""Weight of a task's newest group in its recent variance; of a task never played, all of it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChoices:
    """What decides the coming choices, for a checkpoint: `counted` `(dataset, task, groups, recent variance)` of every
    task that was played, and `chosen` `(ordinal, task, variance)` of the ordinals that do not count yet, without a
    variance until their group is played. Those up to `trained` count from the next update on."""

    counted: tuple[tuple[int, int, int, float], ...] = ()
    chosen: tuple[tuple[int, int, float | None], ...] = ()
    trained: int = -1


class Learnability:
    """How much each task of one dataset teaches: its recent variance, and the most of any task if unknown."""

    def __init__(self, tasks: int) -> None:
        self.groups = np.zeros(tasks, np.int64)
        self.variances = np.zeros(tasks)
        self._edges: NDArray[np.float64] | None = None

    def count(self, task: int, variance: float) -> None:
        self.groups[task] += 1
        self.variances[task] += RECENT * (variance - self.variances[task])
        self._edges = None

    def at(self, quantile: float) -> int:
        """Return the task at a quantile of the probabilities, in [0, 1)."""
        if self._edges is None:
            self._edges = np.cumsum(probabilities(self.groups, self.variances))
        return min(int(np.searchsorted(self._edges, quantile, side="right")), len(self._edges) - 1)


def probabilities(groups: NDArray[np.int64], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability `[N]` of every task, after this many groups and with these recent variances."""
    unknown, played = (1 - RECENT) ** groups.astype(np.float64), groups > 0
    most = np.max(variances[played] / (1 - unknown[played]), initial=0.0)
    teaches = variances + unknown * most
    even = np.full(len(teaches), 1 / len(teaches))
    return FLOOR * even + (1 - FLOOR) * teaches / teaches.sum() if most > 0 else even


def quantile(order: TaskOrder[T], place: int) -> float:
    """Return the quantile at which position `place` samples the distribution: random within the share of its task if
    all are equal. So equal probabilities give the order itself, and others spread their draws as evenly."""
    bits = np.random.Philox(key=np.array([order.seed % 2**64, place], dtype=np.uint64), counter=1).random_raw()
    return float((order.place(place) + (int(bits) >> 11) * 2.0**-53) / len(order))


class ChosenTasks(Generic[T]):
    """The tasks of a run: those of a mixture, whose datasets in `by_learnability` choose each task when requested, by
    the seed, the ordinal, and the groups that count: from `advance` on all up to the newest trained one, in the order
    of their ordinals. So at staleness 0 a run always makes the same choices."""

    def __init__(
        self, mixture: MixedOrder[T], by_learnability: Iterable[int], choices: TaskChoices | None = None
    ) -> None:
        self._mixture = mixture
        self._learnability = {dataset: Learnability(len(mixture.orders[dataset])) for dataset in by_learnability}
        self._chosen: dict[int, int] = {}
        self._variances: dict[int, float] = {}
        if choices is not None:
            for dataset, task, groups, variance in choices.counted:
                self._learnability[dataset].groups[task] = groups
                self._learnability[dataset].variances[task] = variance
            self._chosen = {ordinal: task for ordinal, task, _ in choices.chosen}
            self._variances = {ordinal: seen for ordinal, _, seen in choices.chosen if seen is not None}
            self.advance(choices.trained)

    def __getitem__(self, ordinal: int) -> T:
        dataset, place = self._mixture.slot(ordinal)
        order = self._mixture.orders[dataset]
        if dataset not in self._learnability:
            return order[place]
        if ordinal not in self._chosen:
            self._chosen[ordinal] = self._learnability[dataset].at(quantile(order, place))
        return order.tasks[self._chosen[ordinal]]

    def settled(self, ordinal: int, outcome: Group | Filtered | Failed) -> None:
        """Note how the group of an ordinal ended. A failed one says nothing about its task."""
        if ordinal not in self._chosen:
            return
        if isinstance(outcome, Failed):
            del self._chosen[ordinal]
        else:
            group = outcome.group if isinstance(outcome, Filtered) else outcome
            self._variances[ordinal] = group.reward_variance

    def advance(self, trained: int) -> None:
        """Let all groups up to the ordinal `trained` count, which are all settled."""
        for ordinal in sorted(one for one in self._variances if one <= trained):
            dataset, _ = self._mixture.slot(ordinal)
            self._learnability[dataset].count(self._chosen.pop(ordinal), self._variances.pop(ordinal))

    def choices(self, trained: int) -> TaskChoices:
        """Return what decides the choices after `advance(trained)`."""
        return TaskChoices(
            counted=tuple(
                (dataset, int(task), int(one.groups[task]), float(one.variances[task]))
                for dataset, one in self._learnability.items()
                for task in np.flatnonzero(one.groups)
            ),
            chosen=tuple((ordinal, task, self._variances.get(ordinal)) for ordinal, task in self._chosen.items()),
            trained=trained,
        )
