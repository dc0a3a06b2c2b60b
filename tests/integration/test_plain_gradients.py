"""A rank's whole gradient is that of plain torch and transformers, a sequence at a time, whatever the loss and plan."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.models.config import LoraConfig, ModelConfig, TinyModelConfig
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import save_tiny
from rlhf.trainer.batching.pairs import mismatched
from rlhf.trainer.config import PreferenceConfig, TrainerConfig
from rlhf.trainer.credit.registry import PRESETS
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.pair_learner import PreferenceLearner
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group
from rlhf.weight_sync import weights
from tests.integration import plain
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.plain import POLICY_LOSSES, Gradient, Plain, distance
from tests.integration.test_learner import look
from tests.trainer.batching.test_pairs import made_pairs
from tests.trainer.made import made_groups, with_one_prompt

pytestmark = pytest.mark.engine

TEMPERATURE, TOLERANCE, BYTES = 0.8, 1e-6, 1 << 20
LORA = LoraConfig(rank=4, alpha=6, target_modules=("q_proj", "v_proj", "down_proj"))
PAIRS = made_pairs()
PREFERENCES = {
    "dpo": PreferenceConfig(loss="dpo", beta=0.2, label_smoothing=0.1),
    "ipo": PreferenceConfig(loss="ipo", beta=0.5),
    "kto": PreferenceConfig(loss="kto", beta=0.3, desirable_weight=1.5, undesirable_weight=0.7),
}
WAYS = ("whole", "lora", "recomputed")
CUT = {"tokens_per_microbatch": 150}
"""Rows of several sequences in several micro-batches."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A policy, a reference that disagrees with it, and a critic."""
    tiny = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96)
    made = []
    for seed, factor in ((0, 4), (1, 2)):
        folder = str(save_tiny(tiny, seed, tmp_path_factory.mktemp("models")))
        model = load_policy(folder)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(factor)
        model.save_pretrained(folder)
        made.append(folder)
    critic = load_scalar(made[1], fresh_head=True)
    torch.manual_seed(2)
    torch.nn.init.normal_(critic.score.weight, std=0.05)
    folder = str(tmp_path_factory.mktemp("critic"))
    critic.save_pretrained(folder)
    load_tokenizer(made[1]).save_pretrained(folder)
    return made[0], made[1], folder


@cache
def groups_of(policy: str) -> tuple[Group, ...]:
    """Groups with a prompt each, sampled by a policy near this one: some ratios are clipped, on either side."""
    model = load_policy(policy)
    rng, groups = np.random.default_rng(5), []
    for group in map(with_one_prompt, made_groups(6, 4, seed=3)):
        samples = []
        for sample in group.samples:
            (segment,) = sample.trajectory.segments
            ids = torch.tensor(segment.token_ids).long()
            with torch.no_grad():
                every = (model(ids[None]).logits[0, :-1] / TEMPERATURE).log_softmax(-1)
            own = np.concatenate([[0], every.gather(-1, ids[1:, None])[:, 0].numpy()])
            noisy = np.where(segment.action_mask, own + rng.normal(0, 0.2, len(own)), 0).astype(np.float32)
            trajectory = replace(sample.trajectory, segments=(replace(segment, behaviour_logprobs=noisy),))
            samples.append(replace(sample, trajectory=trajectory))
        groups.append(replace(group, samples=tuple(samples)))
    return tuple(groups)


def record(rank: Rank) -> None:
    """From now on every optimizer step leaves its gradient behind, by the name of the weight."""
    from deepspeed.utils import safe_get_full_grad

    rank.recorded = []  # type: ignore[attr-defined]
    real_step = getattr(zero, "real_step", zero.step)
    zero.real_step = real_step  # type: ignore[attr-defined]

    def recording_step(engine: Any, *setting: str) -> float:
        stage = engine.zero_optimization_stage()
        rank.recorded.append(  # type: ignore[attr-defined]
            {
                name.removeprefix("module.").removeprefix("model.").replace(".default.weight", ""): (
                    safe_get_full_grad(p) if stage else p.grad
                ).clone()
                for name, p in engine.module.named_parameters()
                if p.requires_grad
            }
        )
        return real_step(engine, *setting)

    zero.step = recording_step


def recorded(rank: Rank) -> list[Gradient]:
    zero.step = zero.real_step  # type: ignore[attr-defined]
    return rank.recorded  # type: ignore[attr-defined, no-any-return]


def stir(rank: Rank) -> None:
    """Adapters that do something: a new `B` is zero, and the gradient of `A` with it."""
    weights.perturb(rank.policy, "adapter")


def adapters(rank: Rank) -> dict[str, torch.Tensor]:
    return weights.whole_adapter(rank.policy, BYTES, keep=True)


def start(
    workers: list[ProcessWorker], folders: tuple[str, str, str], stage: int, way: str, **trainer: Any
) -> RemoteLearner:
    config = TrainerConfig(
        updates=4,
        reference_path=folders[1],
        optimizer={"learning_rate": 0.0},
        deepspeed={"ranks": len(workers), "zero_stage": stage, "timeout_seconds": 60},
        **CUT,
        **trainer,
    )
    model = ModelConfig(
        path=folders[0], lora=LORA if way == "lora" else None, gradient_checkpointing=way == "recomputed"
    )
    pairs = "preference" in trainer
    learner = (PreferenceLearner if pairs else RemoteLearner)(workers, config)
    settings = LearnerSettings(
        model_path=folders[0],
        model=model,
        trainer=config,
        temperature=1.0 if pairs else TEMPERATURE,
        trains="preference" if pairs else "policy",
    )
    asyncio.run(learner.start(settings))
    if way == "lora":
        look(workers, stir)
    look(workers, record)
    return learner


def beside(
    workers: list[ProcessWorker], folders: tuple[str, str, str], way: str, temperature: float = TEMPERATURE
) -> Plain:
    """The plain models, with the adapters that the ranks have."""
    models = Plain(*folders, temperature)
    if way == "lora":
        held = look(workers, adapters)
        names = [name.partition(".lora_A")[0] for name in held if ".lora_A" in name]
        both = {name: tuple(held[f"{name}.lora_{part}.weight"] for part in "AB") for name in names}
        models.adapt({name.removeprefix("base_model.model."): pair for name, pair in both.items()}, 6 / 4)
    return models


def matrix(losses: Any) -> Iterator[object]:
    """Every loss in the simplest plan, and one in the corners; everything else takes minutes."""
    for loss in losses:
        for ranks in (1, 2):
            for stage in range(4):
                for way in WAYS:
                    plan = (ranks, stage, way)
                    corner = (loss in ("grpo", "dpo") and plan in ((1, 0, "lora"), (2, 3, "whole"))) or (
                        loss == "ppo" and plan == (1, 0, "recomputed")
                    )
                    quick = corner or plan == (1, 0, "whole")
                    yield pytest.param(
                        loss, ranks, stage, way,
                        id=f"{loss}-{ranks}-ranks-zero{stage}-{way}", marks=[] if quick else [pytest.mark.slow],
                    )  # fmt: skip


@pytest.mark.parametrize(("name", "ranks", "stage", "way"), matrix(POLICY_LOSSES))
def test_the_gradient_of_an_update_is_that_of_the_formula_on_plain_models(
    request: pytest.FixtureRequest, folders: tuple[str, str, str], name: str, ranks: int, stage: int, way: str
) -> None:
    loss, replaced = POLICY_LOSSES[name]
    settings = {**PRESETS[name].settings, **replaced}
    critic = {"critic": {"path": folders[2]}} if "critic" in settings else {}
    workers = ranks_of(request, ranks)
    learner = start(workers, folders, stage, way, **{**settings, **critic})
    models = beside(workers, folders, way)  # a step puts masters in the place of stirred adapters
    groups = groups_of(folders[0])
    asyncio.run(learner.update(groups))
    found = look(workers, recorded)
    said = models.says(groups)
    expected = [plain.gradient(models.policy, loss(said))]
    if critic:
        expected.append(plain.gradient(models.critic, plain.ppo_critic(said)))
    assert all(part.norm() > 0 for gradient in expected for part in gradient.values())
    distances = [distance(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(distances) <= TOLERANCE, distances


@pytest.mark.parametrize(("name", "ranks", "stage", "way"), matrix(PREFERENCES))
def test_the_gradient_of_a_step_on_pairs_is_that_of_the_formula_on_plain_models(
    request: pytest.FixtureRequest, folders: tuple[str, str, str], name: str, ranks: int, stage: int, way: str
) -> None:
    workers = ranks_of(request, ranks)
    learner = start(workers, folders, stage, way, preference=PREFERENCES[name])
    assert isinstance(learner, PreferenceLearner)
    models = beside(workers, folders, way, temperature=1.0)
    asyncio.run(learner.prefer(PAIRS))
    (found,) = look(workers, recorded)
    pairs = [PAIRS, mismatched(PAIRS)] if name == "kto" else [PAIRS]
    (chosen, rejected), *strangers = (
        [
            [(*models.pair(getattr(pair, side)), int(getattr(pair, side).action_mask.sum())) for pair in some]
            for side in ("chosen", "rejected")
        ]
        for some in pairs
    )
    others = [[*one, *other] for one, other in strangers]
    expected = plain.gradient(models.policy, getattr(plain, name)(chosen, rejected, *others))
    assert distance(found, expected) <= TOLERANCE
