from collections.abc import Mapping

import numpy as np
import pytest

from rlhf.errors import DataError
from rlhf.trainer.batching.batch import Batch, build_minibatches
from rlhf.trainer.sft import demonstration_batch, fine_tune
from tests.trainer.made import made_segment


class RecordingLearner:
    def __init__(self) -> None:
        self.batches: list[Batch] = []

    async def imitate(self, batch: Batch) -> dict[str, float]:
        self.batches.append(batch)
        return {"sft/nll": 1.0 / len(self.batches)}


def demonstrations(count: int) -> list:
    rng = np.random.default_rng(0)
    return [made_segment(rng, 5, 3) for _ in range(count)]


async def test_every_step_takes_the_next_demonstrations_in_order() -> None:
    learner, given, seen = RecordingLearner(), demonstrations(6), []

    def watch(update: int, metrics: Mapping[str, float]) -> None:
        seen.append((update, metrics["sft/nll"]))

    await fine_tune(learner, given, updates=3, batch_size=2, watch=watch)
    taken = [sequence.token_ids for batch in learner.batches for sequence in batch.sequences]
    assert all(a is segment.token_ids for a, segment in zip(taken, given, strict=True))
    assert seen == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


async def test_demonstrations_that_run_out_are_an_error_that_says_when() -> None:
    with pytest.raises(DataError, match="ran out in update 2: 2 are needed and 1 were left"):
        await fine_tune(RecordingLearner(), demonstrations(3), updates=2, batch_size=2, watch=lambda *_: None)


def test_the_loss_is_the_mean_over_response_tokens() -> None:
    batch = demonstration_batch(demonstrations(4))
    (steps,) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=64)
    assert steps[0][0].denominator == 12
    assert (batch.loss_weights == 1).all()
