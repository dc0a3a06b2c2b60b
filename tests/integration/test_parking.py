"""A rank that is parked has nothing on its device, and afterwards goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pytest
import torch

from rlhf.trainer.config import CriticConfig
from rlhf.trainer.rank.policy_rank import Rank
from tests.integration.learner_ranks import ranks_of
from tests.integration.test_learner import CANARY, look, same, start, train, trainer, whole_weights

pytestmark = pytest.mark.engine


def held_bytes(rank: Rank) -> int:
    """The bytes of all storages in the rank's process that a tensor of Python is on, whoever holds it."""
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.device.type == "cpu"]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def weight_bytes(rank: Rank) -> int:
    return sum(getattr(p, "ds_tensor", p).nbytes for p in rank.policy.parameters())


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype", "critic"),
    [(1, 0, "float32", False), (1, 1, "bfloat16", False), (1, 2, "float32", True), (2, 3, "bfloat16", False)],
)
def test_a_parked_rank_holds_nothing_and_trains_on_as_if_it_had_not_been(
    request: pytest.FixtureRequest, folder: str, ranks: int, stage: int, dtype: str, critic: bool
) -> None:
    workers = ranks_of(request, ranks)
    more = {"critic": CriticConfig(), "advantage": {"estimator": "gae"}} if critic else {}
    config = trainer(ranks, stage, ema_decay=0.9, **more)
    train(learner := start(workers, folder, config, dtype), 3)
    expected, scores = look(workers, whole_weights), asyncio.run(learner.token_logprobs(CANARY))

    learner = start(workers, folder, config, dtype)
    before = look(workers, held_bytes)
    train(learner, 1)
    working, weights = look(workers, held_bytes), look(workers, weight_bytes)
    asyncio.run(learner.hold("nothing"))
    assert look(workers, held_bytes) < 0.15 * weights, (before, working, weights)
    asyncio.run(learner.hold("weights"))
    serving = look(workers, held_bytes)
    assert weights <= serving < 1.3 * weights < working / 2
    halfway = asyncio.run(learner.token_logprobs(CANARY))
    asyncio.run(learner.hold("everything"))
    assert look(workers, held_bytes) >= working - weights / 4
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), halfway)
    train(learner, 2)
    assert same(look(workers, whole_weights), expected)
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), scores)
