"""What is kept in the machine's memory is trained, published, saved and loaded like what is not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.trainer.config import CriticConfig, TrainerConfig
from rlhf.trainer.rank.policy_rank import Rank
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import CANARY, look, same, start, train, trainer, whole_weights
from tests.whole import whole_state

pytestmark = pytest.mark.engine


def offloaded(config: TrainerConfig, parameters: str) -> TrainerConfig:
    changed = config.deepspeed.model_copy(update={"offload_optimizer": "cpu", "offload_parameters": parameters})
    return config.model_copy(update={"deepspeed": changed})


def what_is_offloaded(rank: Rank) -> list[tuple[bool, bool]]:
    """Of every engine, as its optimizer does it: whether it keeps state in the machine's memory, and whether all
    shards of the weights lie in buffers there."""
    engines = [rank.engine] + ([rank.critic.engine] if rank.critic else [])
    return [(keeps_state(engine.optimizer), keeps_weights(engine)) for engine in engines]


def keeps_state(optimizer: Any) -> bool:
    """Gradients for state in the machine's memory wait there for the end of the step; other stages, other names."""
    known = vars(optimizer)
    return bool(known["offload_optimizer"] if "offload_optimizer" in known else known["cpu_offload"])


def keeps_weights(engine: Any) -> bool:
    buffers = vars(engine.optimizer).get("param_groups_fp16_flat_cpu_memory", [])
    inside = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    return bool(inside) and all(w.ds_tensor.untyped_storage().data_ptr() in inside for w in engine.module.parameters())


@pytest.mark.parametrize(
    ("ranks", "stage", "parameters", "dtype"), [(1, 2, "none", "bfloat16"), (2, 3, "cpu", "float32")]
)
def test_offloaded_state_is_trained_published_and_saved_like_any_other(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, ranks: int, stage: int, parameters: str, dtype: str
) -> None:
    workers = ranks_of(request, ranks)
    config = trainer(ranks, stage)
    train(plain := start(workers, folder, config, dtype), 3)
    expected, scores = look(workers, whole_weights), asyncio.run(plain.token_logprobs(CANARY))
    assert look(workers, what_is_offloaded) == [(False, False)]
    learner = start(workers, folder, offloaded(config, parameters), dtype)
    assert look(workers, what_is_offloaded) == [(True, parameters == "cpu")]
    train(learner, 1)
    asyncio.run(learner.perturb())
    asyncio.run(learner.restore())
    asyncio.run(learner.save(tmp_path))
    train(learner, 2)
    assert same(look(workers, whole_weights), expected)
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), scores)
    resumed = start(workers, folder, offloaded(config, parameters), dtype)
    asyncio.run(resumed.load(tmp_path))
    train(resumed, 2)
    assert same(look(workers, whole_weights), expected)


def both_weights(rank: Rank) -> list[torch.Tensor]:
    """All weights of the policy, and all of the critic."""
    modules = (rank.policy, rank.critic.module)
    return [torch.cat([w.flatten() for w in whole_state(one).values()]) for one in modules]


def test_a_critic_keeps_its_state_where_the_policy_does(single: list[ProcessWorker], folder: str) -> None:
    changes = {"advantage": {"estimator": "gae"}, "critic": CriticConfig()}
    config = offloaded(trainer(1, 3, **changes), "cpu")
    learner = start(single, folder, config)
    assert look(single, what_is_offloaded) == [(True, True)] * 2
    before = look(single, both_weights)
    train(learner, 2)
    moved = [not torch.equal(now, then) for now, then in zip(look(single, both_weights), before, strict=True)]
    assert moved == [True, True]
    assert look(single, what_is_offloaded) == [(True, True)] * 2
