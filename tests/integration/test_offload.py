"""What is kept in the machine's memory is trained, published, saved and loaded like what is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rlhf.trainer.config import CriticConfig, TrainerConfig
from rlhf.trainer.rank import Rank
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import (
    CANARY,
    look,
    same,
    start,
    train,
    trainer,
    whole_weights,
)

pytestmark = pytest.mark.engine


def offloaded(config: TrainerConfig, parameters: str) -> TrainerConfig:
    changed = config.deepspeed.model_copy(update={"offload_optimizer": "cpu", "offload_parameters": parameters})
    return config.model_copy(update={"deepspeed": changed})


def what_is_offloaded(rank: Rank) -> list[tuple[str, str]]:
    """Devices of the optimizer's state and of the weights, as DeepSpeed's engines were told."""
    engines = [rank.engine] + ([rank.critic.engine] if rank.critic else [])
    settings = [(engine.zero_offload_optimizer(), engine.zero_offload_param()) for engine in engines]
    return [(str(optimizer.device), str(weights.device) if weights else "none") for optimizer, weights in settings]


@pytest.mark.parametrize(
    ("ranks", "stage", "parameters", "dtype"), [(1, 2, "none", "bfloat16"), (2, 3, "cpu", "float32")]
)
def test_offloaded_state_is_trained_published_and_saved_like_any_other(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, ranks: int, stage: int, parameters: str, dtype: str
) -> None:
    workers = ranks_of(request, ranks)
    config = trainer(ranks, stage)
    train(plain := start(workers, folder, config, dtype), 3)
    expected, scores = look(workers, whole_weights), asyncio.run(plain.score(CANARY))
    learner = start(workers, folder, offloaded(config, parameters), dtype)
    assert look(workers, what_is_offloaded) == [("cpu", parameters)]
    train(learner, 1)
    asyncio.run(learner.perturb())
    asyncio.run(learner.restore())
    asyncio.run(learner.save(tmp_path))
    train(learner, 2)
    assert same(look(workers, whole_weights), expected)
    np.testing.assert_array_equal(asyncio.run(learner.score(CANARY)), scores)
    resumed = start(workers, folder, offloaded(config, parameters), dtype)
    asyncio.run(resumed.load(tmp_path))
    train(resumed, 2)
    assert same(look(workers, whole_weights), expected)


def test_a_critic_keeps_its_state_where_the_policy_does(single: list[ProcessWorker], folder: str) -> None:
    changes = {"advantage": {"estimator": "gae"}, "critic": CriticConfig()}
    config = offloaded(trainer(1, 3, **changes), "cpu")
    learner = start(single, folder, config)
    assert look(single, what_is_offloaded) == [("cpu", "cpu")] * 2
    train(learner, 2)
