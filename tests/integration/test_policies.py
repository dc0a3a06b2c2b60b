"""Several policies over one base, on real DeepSpeed ranks: each learns, bit for bit, what it learns alone."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rlhf.durable import sizes
from rlhf.errors import CheckpointError, PolicyMismatch
from rlhf.models.config import LoraConfig, ModelConfig, TinyModelConfig
from rlhf.models.tiny import save_tiny
from rlhf.trainer.config import DeepSpeedConfig, TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.policies import PolicyLearners, PolicyWorker
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Trajectory
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import CANARY, SLOW, publish_to_this_process, same
from tests.trainer.made import made_groups

pytestmark = pytest.mark.engine

PLANS = [(1, 0), (2, 3), *(pytest.param(one, marks=SLOW) for one in ((1, 3), (2, 0), (2, 1), (2, 2)))]
OWN: dict[str, tuple[int, dict[str, Any]]] = {
    "solver": (4, {"optimizer": {"learning_rate": 1e-2, "schedule": "linear"}, "minibatches": 2}),
    "proposer": (
        8,
        {"optimizer": {"learning_rate": 3e-3, "betas": (0.8, 0.9), "schedule": "linear"}, "kl": {"coefficient": 0.1}},
    ),
}
"""Of each policy that is trained: the rank of its adapter, and how it is trained."""
Adapters = dict[str, torch.Tensor]


def settings_of(policy: str, folder: str, ranks: int, stage: int, name: str = "") -> LearnerSettings:
    rank, own = OWN.get(policy, (2, {}))
    if policy == "proposer" and (other := Path(f"{folder}-2")).is_dir():
        folder = str(other)
    deepspeed = DeepSpeedConfig(ranks=ranks, zero_stage=stage, timeout_seconds=60, start_timeout_seconds=120)
    model = ModelConfig(path=folder, lora=LoraConfig(rank=rank, weight_sync="adapter"))
    config = TrainerConfig(updates=10, deepspeed=deepspeed, **own)
    return LearnerSettings(model_path=folder, model=model, trainer=config, policy=name, frozen=policy == "old")


def played(update: int) -> list[Group]:
    """Groups whose samples the three policies played, in turn."""
    return [
        replace(
            group,
            samples=tuple(
                replace(sample, trajectory=replace(sample.trajectory, policy=("solver", "proposer", "old")[n % 3]))
                for n, sample in enumerate(group.samples)
            ),
        )
        for group in made_groups(6, 9, seed=update)
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


async def together(
    workers: Sequence[ProcessWorker], folder: str, plan: tuple[int, int], **given: Any
) -> PolicyLearners:
    own = tuple(settings_of(policy, folder, *plan, name=policy) for policy in (*OWN, "old"))
    learners = PolicyLearners(workers, own[0].trainer, **given)
    await learners.start(replace(own[0], policies=own))
    return learners


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
async def test_each_policy_learns_what_it_learns_alone_also_over_a_resume(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, plan: tuple[int, int], models: int
) -> None:
    workers = ranks_of(request, plan[0])
    if models == 2:  # the proposer is over another
        folder = str(shutil.copytree(folder, tmp_path / "model"))
        shape = TinyModelConfig(architecture="llama", hidden_size=64, intermediate_size=96, max_position_embeddings=96)
        save_tiny(shape, 1, Path(f"{folder}-2"))
    expected = {policy: await alone(policy, workers, folder, plan, tmp_path / policy) for policy in OWN}
    learners = await together(workers, folder, plan)
    start = await learners.token_logprobs(CANARY, policy="old")
    for update in range(6):
        if update == 3:
            written = await learners.save(tmp_path / "three")
        assert (await learners.update(played(update))).frozen == ("old",)
    assert {name: one.size for name, one in written.items()} == sizes(tmp_path / "three"), "every file has its writer"
    await learners.save(tmp_path / "six")
    np.testing.assert_array_equal(await learners.token_logprobs(CANARY, policy="old"), start)
    resumed = await together(workers, folder, plan)
    await resumed.load(tmp_path / "three")
    for update in range(3, 6):
        await resumed.update(played(update))
    assert resumed.version == 6
    await resumed.save(tmp_path / "resumed")
    for policy in OWN:
        three, six, again = (tmp_path / run / "policies" / policy for run in ("three", "six", "resumed"))
        assert not same(adapter_in(three), expected[policy]), "it learns in every update"
        assert same(adapter_in(six), expected[policy])
        assert same(adapter_in(again), expected[policy])
        state = (six / "state").glob("*.safetensors")
        assert not [name for file in state for name in load_file(file) if name.startswith("weight:")], "no base"
        assert not (six / "huggingface").exists()
    scores = [await resumed.token_logprobs(CANARY, policy=policy) for policy in OWN]
    await resumed.perturb()
    for policy, before in zip(OWN, scores, strict=True):
        assert np.abs(await resumed.token_logprobs(CANARY, policy=policy) - before).max() > 0.1
    await resumed.restore()
    sent = await publish_to_this_process(resumed)
    assert len(sent) == 3 * len(expected["solver"])
    assert {name.partition("/")[0] for name in sent} == {*OWN, "old"}
    for policy, (rank, _) in OWN.items():
        for name, tensor in expected[policy].items():
            scale = 32 / rank if ".lora_B." in name else 1
            assert torch.equal(sent[f"{policy}/{name.removeprefix('base_model.model.')}"], scale * tensor)


async def test_metrics_are_of_all_and_of_each_that_has_samples(single: list[ProcessWorker], folder: str) -> None:
    learners = await together(single, folder, (1, 0))
    before = await learners.token_logprobs(CANARY, policy="proposer")
    updated = await learners.update(only("solver", played(0)))
    np.testing.assert_array_equal(await learners.token_logprobs(CANARY, policy="proposer"), before)
    assert updated.metrics["proposer/samples/trained"] == 0
    assert "proposer/optimizer/grad_norm" not in updated.metrics
    updated = await learners.update(played(1))
    metrics, policies = updated.metrics, ("solver", "proposer")
    assert learners.version == 2
    assert [metrics[f"{one}/samples/trained"] for one in policies] == [18, 18]
    assert metrics["samples/trained"] == len(updated.samples) == 36
    assert metrics["tokens/computed"] == sum(metrics[f"{one}/tokens/computed"] for one in policies)
    assert [metrics[f"{one}/optimizer/steps"] for one in policies] == [2, 1]
    assert [metrics[f"{one}/optimizer/learning_rate"] for one in policies] == pytest.approx([0.875e-2, 3e-3]), (
        "of the steps that each made"
    )
    assert metrics["samples/lost"] == 0
    assert not [name for name in metrics if name.startswith("old/") or "/samples/lost" in name]


async def test_a_mismatch_names_its_policy(single: list[ProcessWorker], folder: str) -> None:
    learners = await together(single, folder, (1, 0), plays=True)
    with pytest.raises(PolicyMismatch, match=r"^policy solver: learner and engine give tokens that version 0 sampled"):
        await learners.update(played(0))
    assert learners.version == 0


async def test_a_policy_that_the_checkpoint_lacks_or_has_otherwise_is_named(
    single: list[ProcessWorker], folder: str, tmp_path: Path
) -> None:
    learners = await together(single, folder, (1, 0))
    await learners.save(tmp_path)
    state = tmp_path / "policies" / "proposer" / "learner.json"
    state.write_text(state.read_text().replace('"version": 0', '"version": 1'))
    with pytest.raises(CheckpointError, match=r"different versions .*'solver': 0, 'proposer': 1"):
        await learners.load(tmp_path)
    shutil.rmtree(tmp_path / "policies" / "proposer")
    with pytest.raises(CheckpointError, match="has the policies old, solver, but the recipe has"):
        await learners.load(tmp_path)


async def test_the_base_is_read_once(single: list[ProcessWorker], folder: str, tmp_path: Path) -> None:
    copied = shutil.copytree(folder, tmp_path / "model")
    await single[0].call("divide", list(OWN), timeout_seconds=60)
    for policy in OWN:
        settings = settings_of(policy, str(copied), 1, 0, name=policy)
        await RemoteLearner([PolicyWorker(single[0], policy)], settings.trainer).start(settings)
        if policy == "solver":
            (copied / "model.safetensors").unlink()
