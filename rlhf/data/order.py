"""The order of tasks: a pure function of (seed, epoch), so that a resume or another schedule sees the same tasks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import DataError

EPOCHS_KEPT = 4
"""Permutations in memory: tickets of neighbouring epochs are out together, others are made again on demand."""
T = TypeVar("T")


class TaskOrder(Generic[T]):
    """An endless sequence of tasks: every task exactly once an epoch, in an order drawn anew each epoch."""

    def __init__(self, tasks: Sequence[T], seed: int, shuffle: bool = True) -> None:
        if not tasks:
            raise DataError("there are no tasks to put in order: the dataset is empty")
        self.tasks, self._shuffle = tasks, shuffle
        self.seed = seed
        self._permutation = lru_cache(EPOCHS_KEPT)(partial(permutation, len(tasks), seed))

    def __getitem__(self, ordinal: int) -> T:
        return self.tasks[self.place(ordinal)]

    def __len__(self) -> int:
        return len(self.tasks)

    def place(self, ordinal: int) -> int:
        """Return the place of an ordinal's task among the tasks."""
        if ordinal < 0:
            raise IndexError(f"ordinals count from 0, got {ordinal}")
        place = ordinal % len(self.tasks)
        return int(self._permutation(self.epoch(ordinal))[place]) if self._shuffle else place

    def epoch(self, ordinal: int) -> int:
        return ordinal // len(self.tasks)


def permutation(count: int, seed: int, epoch: int) -> NDArray[np.intp]:
    """Return a permutation `[count]` of 0..count-1: the ranks of Philox's raw bits, which numpy keeps stable."""
    bits = np.random.Philox(key=np.array([seed % 2**64, epoch], dtype=np.uint64))
    return np.argsort(bits.random_raw(count), kind="stable")
