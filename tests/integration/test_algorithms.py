"""Every algorithm on a real rank: its gradient and its metrics do not depend on how a batch is cut, ordered, or what
stands where nothing was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.config import build, merge
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import byte_tokenizer, save_tiny
from rlhf.trainer.algorithms.registry import PRESETS
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Segment, Trajectory, Updated
from tests.integration.learner_ranks import ProcessWorker, rank_processes
from tests.pace import scaled
from tests.trainer.made import made_groups, with_one_prompt

pytestmark = pytest.mark.engine

TINY = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96)
MORE: dict[str, dict[str, Any]] = {
    **{name: dict(preset.settings) for name, preset in PRESETS.items()},
    "vtrace": {
        "advantage": {"estimator": "vtrace", "gamma": 0.99},
        "loss": {"policy": "policy_gradient"},
        "critic": {},
    },
    "turns and entropy": {
        "advantage": {"estimator": "gae", "per_turn": True},
        "loss": {"entropy_coefficient": 0.01, "dual_clip": 3.0},
        "critic": {"value_clip": None},
    },
    "decoupled, sequences masked": {
        "old_logprobs": "recomputed",
        "correction": {"method": "mask", "level": "geometric", "low": 0.8, "high": 1.2},
        "kl": {"coefficient": 0.1, "estimator": "k1", "exact_gradient": True},
    },
}
"""Settings of `trainer` by name: every preset, and pieces that no preset has."""
QUICK = {"dapo", "reinforce_pp", "remax", "vtrace", "turns and entropy", "decoupled, sequences masked"}
"""Those that the plain gradients are not measured with, or that differ most from one another."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A policy, another one to be its reference, and a critic that is not zero."""
    root = tmp_path_factory.mktemp("models")
    policy, reference = save_tiny(TINY, 0, root / "policy"), save_tiny(TINY, 1, root / "reference")
    opinionated = load_policy(str(reference))
    with torch.no_grad():  # untrained models all say the same, and rounding would be all of their difference
        opinionated.get_output_embeddings().weight.mul_(5)
    opinionated.save_pretrained(reference)
    critic = load_scalar(str(policy), fresh_head=True)
    torch.manual_seed(2)
    torch.nn.init.normal_(critic.score.weight, std=0.3)
    critic.save_pretrained(root / "critic")
    byte_tokenizer().save_pretrained(root / "critic")
    return {"policy": str(policy), "reference": str(reference), "critic": str(root / "critic")}


@pytest.fixture(scope="module")
def worker() -> Iterator[ProcessWorker]:
    with rank_processes(1) as (only,):
        yield only


def settings_of(name: str, folders: dict[str, str], **changes: Any) -> TrainerConfig:
    """One optimizer step at learning rate 0: what is compared is its gradient."""
    still = {"optimizer": {"learning_rate": 0.0}, "epochs": 1, "minibatches": 1, "reference_path": folders["reference"]}
    critic = (
        {"critic": {"path": folders["critic"], "optimizer": {"learning_rate": 0.0}}} if "critic" in MORE[name] else {}
    )
    values, _ = merge(("preset", MORE[name]), ("test", still | critic | changes | {"group_size": 4}))
    return build(TrainerConfig, values)


def start(
    worker: ProcessWorker, folders: dict[str, str], config: TrainerConfig, row_tokens: int = 128
) -> RemoteLearner:
    learner = RemoteLearner([worker], config, row_tokens=row_tokens, max_tokens=12)
    model = ModelConfig(path=folders["policy"])
    asyncio.run(learner.start(LearnerSettings(model_path=folders["policy"], model=model, trainer=config)))
    worker.inspect(record_gradients).result(timeout=scaled(60))
    return learner


def record_gradients(rank: Rank) -> None:
    """From now on every optimizer step leaves its gradient behind, the policy's first."""
    rank.recorded = []  # type: ignore[attr-defined]
    real_step = getattr(zero, "real_step", zero.step)
    zero.real_step = real_step  # type: ignore[attr-defined]

    def recording_step(engine: Any, *setting: str) -> float:
        gradients = [p.grad.double().flatten() for p in engine.module.parameters() if p.grad is not None]
        # Under ZeRO-3 there are none to see; another file's tests may use this process after these.
        rank.recorded.append(torch.cat([torch.zeros(0).double(), *gradients]).numpy())  # type: ignore[attr-defined]
        return real_step(engine, *setting)

    zero.step = recording_step


def take_gradients(rank: Rank) -> list[np.ndarray]:
    taken, rank.recorded = rank.recorded, []  # type: ignore[attr-defined]
    return taken


def updated(learner: RemoteLearner, worker: ProcessWorker, groups: list[Group]) -> tuple[list[np.ndarray], Updated]:
    outcome = asyncio.run(learner.update(groups))
    return worker.inspect(take_gradients).result(timeout=scaled(60)), outcome


def made() -> list[Group]:
    """Groups with shared prompts, rewards of many values, a greedy baseline each, some samples cut off."""
    rng = np.random.default_rng(3)
    groups = []
    for group in map(with_one_prompt, made_groups(6, 5)):
        samples = [
            replace(
                sample,
                score=Scored(value=float(rng.normal())),
                trajectory=replace(
                    sample.trajectory, status=rng.choice([EpisodeStatus.TERMINATED, EpisodeStatus.TRUNCATED])
                ),
            )
            for sample in group.samples
        ]
        groups.append(replace(group, samples=tuple(samples[:4]), baseline=samples[4]))
    return groups


def with_segments(groups: list[Group], changed: Callable[[Segment], Segment]) -> list[Group]:
    def sample_with(sample: Sample) -> Sample:
        assert isinstance(sample.trajectory, Trajectory)
        segments = tuple(map(changed, sample.trajectory.segments))
        return replace(sample, trajectory=replace(sample.trajectory, segments=segments))

    return [replace(group, samples=tuple(map(sample_with, group.samples))) for group in groups]


def poisoned(segment: Segment) -> Segment:
    """NaN and nonsense wherever the policy did not sample."""
    return replace(
        segment,
        logprobs=np.where(segment.action_mask, segment.logprobs, np.nan).astype(np.float32),
        versions=np.where(segment.action_mask, segment.versions, 10**6).astype(np.int32),
    )


def permuted(groups: list[Group]) -> list[Group]:
    rng = np.random.default_rng(5)
    shuffled = [replace(group, samples=tuple(group.samples[i] for i in rng.permutation(4))) for group in groups]
    return [shuffled[i] for i in rng.permutation(len(shuffled))]


def assert_same(one: tuple[list[np.ndarray], Updated], other: tuple[list[np.ndarray], Updated]) -> None:
    for gradient, reference in zip(one[0], other[0], strict=True):
        assert np.linalg.norm(reference) > 0
        assert np.linalg.norm(gradient - reference) / np.linalg.norm(reference) <= 1e-6
    plan = {"tokens/computed"}
    metrics, expected = ({k: v for k, v in u.metrics.items() if k not in plan} for u in (one[1], other[1]))
    assert metrics == {name: pytest.approx(value, rel=2e-5, abs=2e-6) for name, value in expected.items()}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MORE]
)
def test_a_step_depends_on_its_samples_and_on_nothing_else(
    name: str, worker: ProcessWorker, folders: dict[str, str]
) -> None:
    groups = made()
    learner = start(worker, folders, settings_of(name, folders))
    whole = updated(learner, worker, groups)
    assert_same(updated(learner, worker, permuted(groups)), whole)
    assert_same(updated(learner, worker, with_segments(groups, poisoned)), whole)
    for tokens, row_tokens in ((300, 128), (1, 1)):
        learner._config = settings_of(name, folders, tokens_per_microbatch=tokens)
        learner._row_tokens = row_tokens
        assert_same(updated(learner, worker, groups), whole)
