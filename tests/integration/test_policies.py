"""Several policies over one base, on real DeepSpeed ranks: each learns, bit for bit, what it learns alone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rlhf.models.config import LoraConfig, ModelConfig
from rlhf.trainer.config import DeepSpeedConfig, TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.policies import PolicyWorker
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Trajectory
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import SLOW, same
from tests.trainer.made import made_groups

pytestmark = pytest.mark.engine

PLANS = [(1, 0), (2, 3), *(pytest.param(one, marks=SLOW) for one in ((1, 3), (2, 0), (2, 1), (2, 2)))]
OWN: dict[str, tuple[int, dict[str, Any]]] = {
    "solver": (4, {"optimizer": {"learning_rate": 1e-2, "schedule": "linear"}, "minibatches": 2}),
    "proposer": (8, {"optimizer": {"learning_rate": 3e-3, "betas": (0.8, 0.9)}, "kl": {"coefficient": 0.1}}),
}
"""Of each policy: the rank of its adapter, and how it is trained."""
Adapters = dict[str, torch.Tensor]


def settings_of(policy: str, folder: str, ranks: int, stage: int, name: str = "") -> LearnerSettings:
    rank, own = OWN[policy]
    deepspeed = DeepSpeedConfig(ranks=ranks, zero_stage=stage, timeout_seconds=60, start_timeout_seconds=120)
    model = ModelConfig(path=folder, lora=LoraConfig(rank=rank, weight_sync="adapter"))
    config = TrainerConfig(updates=10, deepspeed=deepspeed, **own)
    return LearnerSettings(model_path=folder, model=model, trainer=config, policy=name)


def played(update: int) -> list[Group]:
    """Groups whose samples both policies played, in turn."""
    return [
        replace(
            group,
            samples=tuple(
                replace(sample, trajectory=replace(sample.trajectory, policy=("solver", "proposer")[n % 2]))
                for n, sample in enumerate(group.samples)
            ),
        )
        for group in made_groups(6, 6, seed=update)
    ]


def only(policy: str, groups: Sequence[Group]) -> list[Group]:
    """The groups of a run in which nobody else played."""

    def own(group: Group) -> Group:
        samples = (s for s in group.samples if isinstance(s.trajectory, Trajectory) and s.trajectory.policy == policy)
        return replace(group, samples=tuple(samples))

    return [own(group) for group in groups]


async def alone(
    policy: str, workers: Sequence[ProcessWorker], folder: str, plan: tuple[int, int], path: Path
) -> Adapters:
    settings = settings_of(policy, folder, *plan)
    learner = RemoteLearner(workers, settings.trainer)
    await learner.start(settings)
    for update in range(6):
        await learner.update(only(policy, played(update)))
    await learner.save(path)
    return adapter_in(path)


def adapter_in(path: Path) -> Adapters:
    return load_file(path / "adapter" / "adapter_model.safetensors")


async def together(workers: Sequence[ProcessWorker], folder: str, plan: tuple[int, int]) -> dict[str, RemoteLearner]:
    await asyncio.gather(*(worker.call("divide", list(OWN), timeout_seconds=60) for worker in workers))
    learners = {}
    for policy in OWN:
        settings = settings_of(policy, folder, *plan, name=policy)
        learners[policy] = RemoteLearner([PolicyWorker(worker, policy) for worker in workers], settings.trainer)
        await learners[policy].start(settings)
    return learners


async def train(learners: Mapping[str, RemoteLearner], updates: range) -> None:
    for update in updates:
        for policy, learner in learners.items():
            await learner.update([replace(group, policy=policy) for group in played(update)])


async def save(learners: Mapping[str, RemoteLearner], path: Path) -> None:
    for policy, learner in learners.items():
        (path / policy).mkdir(parents=True)
        await learner.save(path / policy)


@pytest.mark.parametrize("plan", PLANS)
async def test_each_policy_learns_what_it_learns_alone_also_over_a_resume(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, plan: tuple[int, int]
) -> None:
    workers = ranks_of(request, plan[0])
    expected = {policy: await alone(policy, workers, folder, plan, tmp_path / policy) for policy in OWN}
    learners = await together(workers, folder, plan)
    await train(learners, range(3))
    await save(learners, tmp_path / "three")
    await train(learners, range(3, 6))
    await save(learners, tmp_path / "six")
    resumed = await together(workers, folder, plan)
    for policy, learner in resumed.items():
        await learner.load(tmp_path / "three" / policy)
    await train(resumed, range(3, 6))
    await save(resumed, tmp_path / "resumed")
    for policy in OWN:
        assert not same(adapter_in(tmp_path / "three" / policy), expected[policy]), "it learns in every update"
        for run in ("six", "resumed"):
            assert same(adapter_in(tmp_path / run / policy), expected[policy]), (run, policy)
        state = (tmp_path / "six" / policy / "state").glob("*.safetensors")
        assert not [name for file in state for name in load_file(file) if name.startswith("weight:")], "no base"
        assert not (tmp_path / "six" / policy / "huggingface").exists()


async def test_the_base_is_read_once(single: list[ProcessWorker], folder: str, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "model")
    await single[0].call("divide", list(OWN), timeout_seconds=60)
    for policy in OWN:
        settings = settings_of(policy, str(copied), 1, 0, name=policy)
        await RemoteLearner([PolicyWorker(single[0], policy)], settings.trainer).start(settings)
        if policy == "solver":
            (copied / "model.safetensors").unlink()
