"""A rank that is parked has nothing on its device, and afterwards goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.trainer.config import CriticConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.policy_rank import Rank
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import CANARY, look, same, start, train, trainer, whole_weights
from tests.pace import scaled

pytestmark = pytest.mark.engine
SLOW = pytest.mark.slow


def tensor_bytes() -> int:
    """Runs in a rank's process: the bytes of all storages that a tensor of Python is on, whoever holds it."""
    gc.collect()
    with warnings.catch_warnings(action="ignore"):
        tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.device.type == "cpu"]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def held(workers: list[ProcessWorker]) -> int:
    bytes_: int = workers[0].process.submit(tensor_bytes).result(timeout=scaled(60))
    return bytes_


def weight_bytes(rank: Rank) -> int:
    return sum(getattr(p, "ds_tensor", p).nbytes for p in rank.policy.parameters())


def dropped_bytes(rank: Rank) -> int:
    """Bytes that come back as zeros."""
    return sum(one.bytes for one in rank._offload._storages._emptied.values() if one.copy is None)


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype", "more"),
    [
        (1, 0, "float32", {"ema_decay": 0.9}),
        pytest.param(1, 2, "bfloat16", {"critic": CriticConfig(), "advantage": {"estimator": "gae"}}, marks=SLOW),
        (2, 3, "bfloat16", {}),
        pytest.param(1, 1, "bfloat16", {}, marks=SLOW),
    ],
)
def test_a_parked_rank_holds_nothing_and_trains_on_as_if_it_had_not_been(
    request: pytest.FixtureRequest, folder: str, ranks: int, stage: int, dtype: str, more: dict[str, Any]
) -> None:
    workers, config = ranks_of(request, ranks), trainer(ranks, stage, **more)
    asyncio.run(RemoteLearner(workers, config).stop())
    others = held(workers)
    learner = start(workers, folder, config, dtype)
    train(learner, 1)
    working, weights = held(workers) - others, look(workers, weight_bytes)
    asyncio.run(learner.hold("nothing"))
    assert held(workers) - others < 0.1 * working
    gradients = stage == 3 or (stage == 1 and dtype == "bfloat16")
    assert (look(workers, dropped_bytes) > 0) == gradients, "gradients of the last step are not worth a copy"
    asyncio.run(learner.hold("weights"))
    assert weights <= held(workers) - others < weights + 0.1 * working
    halfway = asyncio.run(learner.token_logprobs(CANARY))
    asyncio.run(learner.hold("everything"))
    assert held(workers) - others >= 0.9 * working
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), halfway)
    train(learner, 2)
    trained = look(workers, whole_weights)

    train(start(workers, folder, config, dtype), 3)
    assert same(trained, look(workers, whole_weights))
