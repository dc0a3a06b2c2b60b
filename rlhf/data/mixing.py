"""Mix several datasets into one order of tasks, with exact shares and without random draws."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Generic, TypeVar

from rlhf.data.order import TaskOrder

T = TypeVar("T")
SEEDS_APART = 2**32
"""Distance between the datasets' seeds, so that two datasets of one size have different orders."""


class MixedOrder(Generic[T]):
    """An endless sequence of the tasks of several datasets; each walks its own epochs, at the pace of its share:
    without weights that of its rows. `order[ordinal]` depends on nothing that was asked before."""

    def __init__(
        self, datasets: Sequence[Sequence[T]], weights: Sequence[float | None], seed: int, shuffle: bool = True
    ) -> None:
        self.orders = [TaskOrder(rows, seed + index * SEEDS_APART, shuffle) for index, rows in enumerate(datasets)]
        self._weights = whole_weights(
            [len(rows) if weight is None else weight for rows, weight in zip(datasets, weights, strict=True)]
        )

    def __getitem__(self, ordinal: int) -> T:
        dataset, place = self.slot(ordinal)
        return self.orders[dataset][place]

    def slot(self, ordinal: int) -> tuple[int, int]:
        return slot(ordinal, self._weights)


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the smallest whole numbers in the ratio of `weights`, read as decimals: 0.7 is seven tenths."""
    ratios = [Fraction(str(weight)) for weight in weights]
    scale = lcm(*(ratio.denominator for ratio in ratios))
    whole = [int(ratio * scale) for ratio in ratios]
    return tuple(weight // gcd(*whole) for weight in whole)


def slot(ordinal: int, weights: Sequence[int]) -> tuple[int, int]:
    """Return the dataset of task number `ordinal`, and its place in that dataset's order.

    Place j of a dataset of weight w is due at (j + 1/2) / w, and tasks come in the order in which they are due (the
    method of Webster and Sainte-Laguë; the first dataset where two are due at once). After every `sum(weights)` tasks
    each dataset has come exactly its weight's times; in between it is off by no more than 1/2 + share * datasets / 2.
    """
    if ordinal < 0:
        raise IndexError(f"ordinals count from 0, got {ordinal}")
    reach = len(weights)
    for dataset, weight in enumerate(weights):
        expected = ordinal * weight // sum(weights)
        for place in range(max(0, expected - reach), expected + reach + 1):
            if _due_before(dataset, place, weights) == ordinal:
                return dataset, place
    raise AssertionError("some dataset's task has every place in the order")


def _due_before(dataset: int, place: int, weights: Sequence[int]) -> int:
    """Tasks due before place `place` of `dataset`: i of another, if (2i + 1) / other < (2 place + 1) / own."""
    own, doubled = weights[dataset], 2 * place + 1
    earlier = place
    for index, other in enumerate(weights):
        if index != dataset:
            due, tie_counts = doubled * other - own, index < dataset
            earlier += max(0, due // (2 * own) + 1 if tie_counts else -(-due // (2 * own)))
    return earlier
