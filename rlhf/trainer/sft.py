"""Supervised fine-tuning on the learner's ranks: demonstrations packed like episodes, loss on responses only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from rlhf.errors import DataError
from rlhf.trainer.batching.batch import Batch, assemble
from rlhf.types import Segment

Watcher = Callable[[int, Mapping[str, float]], None]


def ignore(update: int, metrics: Mapping[str, float]) -> None:
    """Do nothing."""


class Imitator(Protocol):
    """The part of a learner that supervised fine-tuning uses."""

    async def imitate(self, batch: Batch) -> dict[str, float]: ...


async def fine_tune(
    learner: Imitator, demonstrations: Iterable[Segment], *, updates: int, batch_size: int, watch: Watcher = ignore
) -> dict[str, float]:
    """Take `updates` optimizer steps on batches of `batch_size` demonstrations, in the given order.

    `watch` receives every step's number (from 1) and metrics; the last metrics are returned. Raises `DataError` when
    the demonstrations run out.
    """
    metrics: dict[str, float] = {}
    remaining = iter(demonstrations)
    for update in range(1, updates + 1):
        metrics = await learner.imitate(demonstration_batch(_take(remaining, batch_size, update)))
        watch(update, metrics)
    return metrics


def demonstration_batch(demonstrations: Sequence[Segment]) -> Batch:
    """Return a batch in which every demonstration is its own group; all tokens have the same weight."""
    count = len(demonstrations)
    return assemble(
        [(segment,) for segment in demonstrations],
        sample_groups=range(count),
        samples=[(index, 0) for index in range(count)],
        groups=count,
    )


def _take(demonstrations: Iterator[Segment], count: int, update: int) -> list[Segment]:
    taken = list(islice(demonstrations, count))
    if len(taken) < count:
        raise DataError(f"the demonstrations ran out in update {update}: {count} are needed and {len(taken)} were left")
    return taken
