"""Ranks that share rows train like one that has them alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.models.config import LoraConfig, ModelConfig
from rlhf.models.loading import load_policy
from rlhf.trainer.batching.batch import build_minibatches
from rlhf.trainer.config import CriticConfig, KLConfig, LossConfig, TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.pair_learner import PreferenceLearner, RewardLearner
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Updated
from tests.integration.learner_ranks import ProcessWorker, rank_processes
from tests.integration.test_learner import (
    CANARY,
    gradient_of,
    look,
    off,
    publish_to_this_process,
    same,
    trainer,
    whole_weights,
)
from tests.trainer.batching.test_pairs import made_pairs
from tests.trainer.made import made_batch, made_groups, with_one_prompt

pytestmark = pytest.mark.engine

GROUPS = [*made_groups(6, 8), *(with_one_prompt(group) for group in made_groups(10, 8)[6:])]
"""Groups with and without a shared prompt, in rows of several sequences."""
PAIRS = made_pairs()


def sharing(config: TrainerConfig, size: int = 2) -> TrainerConfig:
    return config.model_copy(update={"deepspeed": config.deepspeed.model_copy(update={"sequence_parallel": size})})


def begin(workers: list[ProcessWorker], folder: str, config: TrainerConfig, **model: Any) -> RemoteLearner:
    learner = RemoteLearner(workers, config)
    settings = LearnerSettings(model_path=folder, model=ModelConfig(path=folder, **model), trainer=config)
    asyncio.run(learner.start(settings))
    return learner


def step_gradient(workers: list[ProcessWorker], teams: int, tokens: int, row_tokens: int) -> np.ndarray:
    """The whole gradient of one optimizer step, which is taken."""
    batch = made_batch(GROUPS)
    parts = build_minibatches(batch, minibatches=1, ranks=teams, tokens_per_microbatch=tokens, row_tokens=row_tokens)
    size = len(workers) // teams
    return look(workers, gradient_of, *[(parts[rank // size],) for rank in range(len(workers))])


def updates(learner: RemoteLearner, count: int) -> list[Updated]:
    return [asyncio.run(learner.update(GROUPS)) for _ in range(count)]


def assert_like(found: list[Updated], expected: list[Updated], tolerance: float = 1e-5) -> None:
    """The same log-probs and figures, update by update."""
    assert expected[0].metrics["optimizer/grad_norm"] > 0
    for a, b in zip(found, expected, strict=True):
        for one, other in zip(a.samples, b.samples, strict=True):
            np.testing.assert_allclose(one.proximal_logprobs, other.proximal_logprobs, rtol=0, atol=tolerance)
            np.testing.assert_allclose(one.advantages, other.advantages, rtol=0, atol=10 * tolerance)
        # How much of the rows is padding depends on how they are dealt.
        figures, wanted = ({k: v for k, v in seen.metrics.items() if k != "tokens/computed"} for seen in (a, b))
        assert figures == pytest.approx(wanted, rel=1e-4, abs=tolerance)


@pytest.fixture(scope="module")
def alone(single: list[ProcessWorker], folder: str) -> tuple[np.ndarray, list[Updated], dict[str, torch.Tensor]]:
    """Of one rank: the gradient of its first step, what it saw in the next two, and its weights then."""
    learner = begin(single, folder, trainer(1, 0))
    first = step_gradient(single, 1, 100_000, 512)
    return first, updates(learner, 2), look(single, whole_weights)


def assert_trains_like_one(
    workers: list[ProcessWorker], teams: int, learner: RemoteLearner, alone: tuple[np.ndarray, list[Updated], Any]
) -> None:
    gradient, seen, weights = alone
    difference = off(step_gradient(workers, teams, 300, 128), gradient)
    assert difference <= 1e-6
    assert_like(updates(learner, 2), seen)
    found = look(workers, whole_weights)
    # Adam divides by the gradient's size, so where a gradient is all rounding its sign is: at most a step apart.
    assert max(float((found[name] - weights[name]).norm() / weights[name].norm()) for name in weights) <= 1e-3


@pytest.mark.parametrize("stage", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3])
def test_two_ranks_that_share_rows_take_the_steps_of_one(
    pair: list[ProcessWorker], folder: str, alone: tuple[np.ndarray, list[Updated], Any], stage: int
) -> None:
    learner = begin(pair, folder, sharing(trainer(2, stage)))
    assert_trains_like_one(pair, 1, learner, alone)


@pytest.mark.slow
def test_two_teams_of_two_ranks_take_the_steps_of_one(
    folder: str, alone: tuple[np.ndarray, list[Updated], Any]
) -> None:
    with rank_processes(4) as workers:
        learner = begin(workers, folder, sharing(trainer(4, 1)))
        assert_trains_like_one(workers, 2, learner, alone)


def test_whole_replies_values_and_a_reference_are_known_to_every_rank_of_a_team(
    single: list[ProcessWorker], pair: list[ProcessWorker], folder: str
) -> None:
    """A ratio of whole replies, a critic's values before and behind them, and KL to a reference that is shared too."""
    changes: dict[str, Any] = {
        "advantage": {"estimator": "gae"},
        "loss": LossConfig(policy="gspo", entropy_coefficient=0.01),
        "kl": KLConfig(coefficient=0.1, stop=100.0),
        "critic": CriticConfig(),
        "epochs": 2,
        "minibatches": 2,
    }
    expected = updates(begin(single, folder, trainer(1, 0, **changes)), 2)
    found = updates(begin(pair, folder, sharing(trainer(2, 1, **changes))), 2)
    assert expected[1].metrics["policy/kl_reference"] > 0
    assert expected[1].metrics["critic/grad_norm"] > 0
    assert_like(found, expected, tolerance=1e-4)


def test_a_pass_over_the_limit_of_kl_stops_a_team_where_it_stops_one(
    single: list[ProcessWorker], pair: list[ProcessWorker], folder: str
) -> None:
    seen = updates(begin(single, folder, trainer(1, 0, epochs=2)), 1)[0].metrics["policy/approx_kl"]
    # Above the first pass's divergence, and below twice that: a sum over both ranks would pass it.
    limited = {"epochs": 2, "kl": KLConfig(stop=1.5 * seen)}
    alone = updates(begin(single, folder, trainer(1, 0, **limited)), 1)
    shared = updates(begin(pair, folder, sharing(trainer(2, 0, **limited))), 1)
    assert_like(shared, alone, tolerance=1e-4)


def test_adapters_and_recomputed_activations_are_shared(
    single: list[ProcessWorker], pair: list[ProcessWorker], folder: str
) -> None:
    lora = LoraConfig(rank=4, alpha=8)
    expected = updates(begin(single, folder, trainer(1, 0), lora=lora), 3)
    found = updates(begin(pair, folder, sharing(trainer(2, 3)), lora=lora, gradient_checkpointing=True), 3)
    assert_like(found, expected, tolerance=1e-4)


def test_what_a_team_learnt_is_published_exported_and_resumed(
    pair: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    learner = begin(pair, folder, sharing(trainer(2, 3)))
    updates(learner, 1)
    weights, scores = look(pair, whole_weights), asyncio.run(learner.token_logprobs(CANARY))
    assert same(asyncio.run(publish_to_this_process(learner)), weights)
    asyncio.run(learner.save(tmp_path))
    model = load_policy(str(tmp_path / "huggingface"))
    assert same(dict(model.named_parameters()), weights)
    assert model.config._attn_implementation == "sdpa"
    updates(learner, 1)
    continued = look(pair, whole_weights)
    resumed = begin(pair, folder, sharing(trainer(2, 3)))
    asyncio.run(resumed.load(tmp_path))
    np.testing.assert_array_equal(asyncio.run(resumed.token_logprobs(CANARY)), scores)
    updates(resumed, 1)
    assert same(look(pair, whole_weights), continued)


@pytest.mark.parametrize(
    ("trains", "kind"),
    [pytest.param("reward_model", RewardLearner, marks=pytest.mark.slow), ("preference", PreferenceLearner)],
)
def test_pairs_are_parted_by_a_team_as_by_one_rank(
    single: list[ProcessWorker], pair: list[ProcessWorker], folder: str, trains: Any, kind: type[RewardLearner]
) -> None:
    def steps(workers: list[ProcessWorker], config: TrainerConfig) -> list[dict[str, float]]:
        learner = kind(workers, config)
        model = ModelConfig(path=folder)
        settings = LearnerSettings(model_path=folder, model=model, trainer=config, trains=trains)
        asyncio.run(learner.start(settings))
        return [asyncio.run(learner.prefer(PAIRS)) for _ in range(3)] + [asyncio.run(learner.evaluate(PAIRS))]

    alone, shared = steps(single, trainer(1, 0)), steps(pair, sharing(trainer(2, 3)))
    assert alone[0]["optimizer/grad_norm"] > 0
    assert alone[-1]["pairs/loss"] < alone[0]["pairs/loss"]
    for one, other in zip(shared, alone, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)
