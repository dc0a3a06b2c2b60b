"""PPO's structure on a real rank: a critic beside the policy, KL under control, and a state that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf.durable import sizes
from rlhf.errors import CheckpointError, ModelError
from rlhf.models.config import ModelConfig
from rlhf.models.loading import load_tokenizer
from rlhf.models.scalar import load_scalar
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Scored
from tests.integration.learner_ranks import ProcessWorker, rank_processes
from tests.pace import scaled
from tests.trainer.made import made_groups, with_one_prompt
from tests.whole import whole_state

pytestmark = pytest.mark.engine

PPO = {"advantage": {"estimator": "gae"}, "critic": {"optimizer": {"learning_rate": 3e-3}}, "epochs": 2}


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest) -> Iterator[list[ProcessWorker]]:
    with rank_processes(request.param) as started:
        yield started


def started(workers: list[ProcessWorker], folder: str, **trainer: Any) -> RemoteLearner:
    stage = {"deepspeed": {"ranks": len(workers), "zero_stage": 3 if len(workers) > 1 else 0}}
    given = {"updates": 20, "optimizer": {"learning_rate": 1e-3}} | stage | PPO | trainer
    config = TrainerConfig(**given)
    learner = RemoteLearner(workers, config)
    settings = LearnerSettings(model_path=folder, model=ModelConfig(path=folder), trainer=config)
    asyncio.run(learner.start(settings))
    return learner


def groups_worth_explaining() -> list[Group]:
    """Rewards that the prompt decides: what a critic can know before the first token."""
    groups = [with_one_prompt(group) for group in made_groups(12, 4)]
    return [
        replace(group, samples=tuple(replace(s, score=Scored(value=float(index % 2))) for s in group.samples))
        for index, group in enumerate(groups)
    ]


def whole(rank: Rank) -> np.ndarray:
    state = whole_state(rank.policy)
    return np.concatenate([tensor.flatten().numpy() for tensor in state.values()])


def policy_weights(workers: list[ProcessWorker]) -> np.ndarray:
    first, *_ = [future.result(timeout=scaled(60)) for future in [worker.inspect(whole) for worker in workers]]
    return first


def whole_critic(rank: Rank) -> np.ndarray:
    from deepspeed.utils import safe_get_full_fp32_param

    staged = rank.critic.engine.zero_optimization()
    held = [safe_get_full_fp32_param(w) if staged else w for w in rank.critic.engine.module.parameters()]
    return np.concatenate([one.detach().double().flatten().numpy() for one in held])


def critic_weights(workers: list[ProcessWorker]) -> np.ndarray:
    first, *_ = [future.result(timeout=60) for future in [worker.inspect(whole_critic) for worker in workers]]
    return first


def test_a_critic_learns_what_explains_the_returns_while_the_policy_waits(
    workers: list[ProcessWorker], folder: str
) -> None:
    learner = started(workers, folder, critic=PPO["critic"] | {"warmup_updates": 6})
    before = policy_weights(workers)
    metrics = [asyncio.run(learner.update(groups_worth_explaining())).metrics for _ in range(6)]
    assert metrics[0]["critic/explained_variance"] == pytest.approx(0.0)
    assert metrics[-1]["critic/explained_variance"] > 0.5
    assert metrics[-1]["critic/loss"] < 0.5 * metrics[0]["critic/loss"]
    np.testing.assert_array_equal(policy_weights(workers), before)
    asyncio.run(learner.update(groups_worth_explaining()))
    assert np.abs(policy_weights(workers) - before).max() > 1e-5


def test_policy_and_critic_have_learning_rates_of_their_own(workers: list[ProcessWorker], folder: str) -> None:
    metrics = asyncio.run(started(workers, folder).update(made_groups(6, 4))).metrics
    assert (metrics["optimizer/learning_rate"], metrics["critic/learning_rate"]) == (1e-3, 3e-3)
    assert metrics["optimizer/steps"] == 2


def test_an_update_stops_once_the_policy_has_strayed(workers: list[ProcessWorker], folder: str) -> None:
    groups = made_groups(12, 4)
    free = asyncio.run(started(workers, folder, epochs=3, minibatches=2).update(groups)).metrics
    assert free["optimizer/steps"] == 6
    held = asyncio.run(started(workers, folder, epochs=3, minibatches=2, kl={"stop": 1e-9}).update(groups)).metrics
    assert held["optimizer/steps"] == 1


def test_the_kl_coefficient_follows_its_target_across_a_checkpoint(
    workers: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    kl = {"coefficient": 0.1, "place": "reward", "estimator": "k1", "target": 1e-6, "horizon": 48}
    learner = started(workers, folder, kl=kl)
    found = [asyncio.run(learner.update(made_groups(12, 4, seed=n))).metrics for n in range(3)]
    assert found[0]["policy/kl_coefficient"] == 0.1
    assert found[0]["policy/kl_reference"] == pytest.approx(0.0, abs=1e-6)
    assert found[2]["policy/kl_coefficient"] != found[1]["policy/kl_coefficient"]
    asyncio.run(learner.save(tmp_path))
    expected = asyncio.run(learner.update(made_groups(12, 4, seed=9))).metrics
    resumed = started(workers, folder, kl=kl)
    asyncio.run(resumed.load(tmp_path))
    again = asyncio.run(resumed.update(made_groups(12, 4, seed=9))).metrics
    assert again == expected


def test_a_critic_s_learning_rate_changed_at_a_resume_decides_its_next_step(
    workers: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    learner = started(workers, folder, epochs=1)
    asyncio.run(learner.update(made_groups(12, 4)))
    written = asyncio.run(learner.save(tmp_path))
    assert {name: one.size for name, one in written.items()} == sizes(tmp_path), "every file has its writer"
    steps = {}
    for rate in (3e-3, 6e-3):
        resumed = started(workers, folder, epochs=1, critic={"optimizer": {"learning_rate": rate}})
        asyncio.run(resumed.load(tmp_path))
        was = critic_weights(workers)
        metrics = asyncio.run(resumed.update(made_groups(12, 4, seed=9))).metrics
        assert metrics["critic/learning_rate"] == rate
        steps[rate] = critic_weights(workers) - was
    difference = np.linalg.norm(steps[6e-3] - 2 * steps[3e-3])
    assert difference < 1e-4 * np.linalg.norm(steps[6e-3])


def test_a_critic_s_folder_must_be_one(workers: list[ProcessWorker], folder: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"trainer\.critic\.path=.*not a sequence-classification model"):
        started(workers, folder, critic={"path": folder})
    model = load_scalar(folder, fresh_head=True)
    model.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(folder)
    tokenizer.add_tokens(["surprise"])
    foreign = tokenizer.get_vocab()["surprise"]
    tokenizer.save_pretrained(tmp_path)
    assert foreign
    started(workers, folder, critic={"path": str(tmp_path)})  # it may have more tokens than the policy


def test_a_checkpoint_without_the_controller_s_state_is_refused(
    workers: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    learner = started(workers, folder, kl={"coefficient": 0.1, "target": 0.1})
    asyncio.run(learner.save(tmp_path))
    (tmp_path / "controller.json").unlink()
    with pytest.raises(CheckpointError, match=r"controller\.json cannot be read"):
        asyncio.run(learner.load(tmp_path))
