"""Supervised fine-tuning on the learner's ranks: demonstrations packed like episodes, loss on responses only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from rlhf.errors import DataError
from rlhf.trainer.batching.batch import Batch, assemble
from rlhf.trainer.learner import RemoteLearner
from rlhf.types import Segment


async def fine_tune(
    learner: RemoteLearner,
    demonstrations: Iterable[Segment],
    *,
    updates: int,
    batch_size: int,
    watch: Callable[[int, Mapping[str, float]], None],
) -> None:
    """Take `updates` optimizer steps on batches of `batch_size` demonstrations, in the given order. `watch` receives
    every step's number (from 1) and metrics. Raises `DataError` when the demonstrations run out."""
    remaining = iter(demonstrations)
    for update in range(1, updates + 1):
        taken = list(islice(remaining, batch_size))
        if len(taken) < batch_size:
            raise DataError(
                f"the demonstrations ran out in update {update}: {batch_size} are needed and {len(taken)} were left"
            )
        watch(update, await learner.imitate(demonstration_batch(taken)))


def demonstration_batch(demonstrations: Sequence[Segment]) -> Batch:
    """Return a batch in which every demonstration is its own group; all tokens have the same weight."""
    count = len(demonstrations)
    return assemble(
        [(segment,) for segment in demonstrations],
        sample_groups=range(count),
        samples=[(index, 0) for index in range(count)],
        groups=count,
    )
