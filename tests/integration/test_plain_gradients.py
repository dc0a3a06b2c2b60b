"""A rank's whole gradient is that of plain torch and transformers, a sequence at a time, whatever the loss and plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

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
from rlhf.types import Group, Segment
from rlhf.weight_sync import weights
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.integration.test_learner import look
from tests.trainer.batching.test_pairs import made_pairs
from tests.trainer.made import made_groups, with_one_prompt

Gradient = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a model says of one sequence's action tokens, `[A]` each, with the reward of the sequence."""

    group: int
    reward: float
    behaviour: Tensor
    logprobs: Tensor
    entropies: Tensor
    reference: Tensor
    values: Tensor

    @property
    def log_ratio(self) -> Tensor:
        return self.logprobs - self.behaviour


class Plain:
    """A policy, its reference and a critic from their folders."""

    def __init__(self, policy: str, reference: str, critic: str, temperature: float) -> None:
        self.policy, self.reference = (_language_model(folder) for folder in (policy, reference))
        self.critic = AutoModelForSequenceClassification.from_pretrained(critic, attn_implementation="eager").double()
        self.temperature = temperature

    def adapt(self, adapters: Mapping[str, tuple[Tensor, Tensor]], scaling: float) -> None:
        """Freeze the policy, and put `A` and `B` beside each of its layers that has a name here."""
        self.policy.requires_grad_(False)
        for name, (a, b) in adapters.items():
            parent, _, own = name.rpartition(".")
            module = self.policy.get_submodule(parent)
            setattr(module, own, Adapted(module.get_submodule(own), a, b, scaling))

    def says(self, groups: Sequence[Group]) -> list[Said]:
        said = []
        for index, group in enumerate(groups):
            for _, trajectory, score in group.trainable:
                (segment,) = trajectory.segments
                ids, actions = _read(segment)
                logprobs, entropies = self._of(self.policy, ids, actions)
                hidden = self.critic.model(input_ids=ids[None], use_cache=False).last_hidden_state[0, actions - 1]
                said.append(
                    Said(
                        group=index,
                        reward=score.value,
                        behaviour=torch.tensor(segment.behaviour_logprobs[segment.action_mask]).double(),
                        logprobs=logprobs,
                        entropies=entropies,
                        reference=self._of(self.reference, ids, actions)[0].detach(),
                        values=self.critic.score(hidden)[:, 0],
                    )
                )
        return said

    def pair(self, segment: Segment) -> tuple[Tensor, Tensor]:
        """A reply's log-prob under policy and reference."""
        ids, actions = _read(segment)
        return self._of(self.policy, ids, actions)[0].sum(), self._of(self.reference, ids, actions)[0].sum().detach()

    def _of(self, model: Any, ids: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=ids[None], use_cache=False).logits[0, actions - 1] / self.temperature
        every = logits.log_softmax(-1)
        return every.gather(-1, ids[actions, None])[:, 0], -(every.exp() * every).sum(-1)


class Adapted(nn.Module):
    """`W x + scaling * B A x` (arXiv 2106.09685)."""

    def __init__(self, base: nn.Module, a: Tensor, b: Tensor, scaling: float) -> None:
        super().__init__()
        self.base, self.scaling = base, scaling
        self.lora_A, self.lora_B = nn.Parameter(a.double()), nn.Parameter(b.double())

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)


def gradient(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward(retain_graph=True)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def distance(found: Gradient, expected: Gradient) -> float:
    """Of the whole gradients, relative to the expected one."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    gaps = torch.stack([(found[name].double() - expected[name]).norm() for name in expected])
    return float(gaps.norm() / torch.stack([part.norm() for part in expected.values()]).norm())


def _language_model(folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double()


def _read(segment: Segment) -> tuple[Tensor, Tensor]:
    return torch.tensor(segment.token_ids).long(), torch.tensor(segment.action_mask).nonzero()[:, 0]


def rewards_against_siblings(said: Sequence[Said], *, by_std: bool) -> list[float]:
    found: list[float] = []
    for _, members in groupby(said, key=lambda one: one.group):
        rewards = torch.tensor([one.reward for one in members]).double()
        centred = rewards - rewards.mean()
        scale = float(rewards.std()) + 1e-6 if by_std else 1.0
        found += (centred / scale).tolist()
    return found


def surrogate(ratio: Tensor, advantage: Tensor | float, low: float, high: float) -> Tensor:
    """PPO's (arXiv 1707.06347)."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def tokens(said: Sequence[Said]) -> int:
    return sum(len(one.logprobs) for one in said)


def grpo(said: Sequence[Said]) -> Tensor:
    """arXiv 2402.03300, equation 3: the mean over outputs of the mean over tokens, and k3 to the reference."""
    total = torch.zeros((), dtype=torch.float64)
    for one, advantage in zip(said, rewards_against_siblings(said, by_std=True), strict=True):
        away = one.reference - one.logprobs
        kl = away.exp() - away - 1
        total = total + (surrogate(one.log_ratio.exp(), advantage, 0.2, 0.2) + 0.04 * kl).mean()
    return total / len(said)


def dr_grpo(said: Sequence[Said]) -> Tensor:
    """arXiv 2503.20783: no deviation, no length; sums over a constant of 16 tokens."""
    parts = zip(said, rewards_against_siblings(said, by_std=False), strict=True)
    return sum((surrogate(one.log_ratio.exp(), a, 0.2, 0.2).sum() for one, a in parts), start=_ZERO) / (16 * len(said))


def gspo(said: Sequence[Said]) -> Tensor:
    """arXiv 2507.18071, equations 5 and 7: one ratio a sequence."""
    parts = zip(said, rewards_against_siblings(said, by_std=True), strict=True)
    return sum((surrogate(one.log_ratio.mean().exp(), a, 0.1, 0.15) for one, a in parts), start=_ZERO) / len(said)


def cispo(said: Sequence[Said]) -> Tensor:
    """arXiv 2506.13585, equation 4: the clipped weight is a constant."""
    total = _ZERO
    for one, advantage in zip(said, rewards_against_siblings(said, by_std=True), strict=True):
        weight = one.log_ratio.exp().clamp(0.0, 1.3).detach()
        total = total - (weight * advantage * one.logprobs).sum()
    return total / tokens(said)


def with_entropy(said: Sequence[Said]) -> Tensor:
    """The surrogate with clip-higher over all tokens, less a bonus for entropy."""
    total = _ZERO
    for one, advantage in zip(said, rewards_against_siblings(said, by_std=True), strict=True):
        total = total + (surrogate(one.log_ratio.exp(), advantage, 0.2, 0.28) - 0.02 * one.entropies).sum()
    return total / tokens(said)


def rloo(said: Sequence[Said]) -> Tensor:
    """arXiv 2402.14740, equation 6: each against the mean of the others, KL in the reward."""
    total = _ZERO
    for _, members in groupby(said, key=lambda one: one.group):
        group = list(members)
        worth = torch.stack([one.reward - 0.03 * (one.logprobs - one.reference).sum().detach() for one in group])
        for n, one in enumerate(group):
            others = (worth.sum() - worth[n]) / (len(group) - 1)
            total = total - (worth[n] - others) * one.logprobs.sum()
    return total / len(said)


def ppo(said: Sequence[Said]) -> Tensor:
    """arXiv 1707.06347 with GAE (1506.02438, lambda 0.9, gamma 0.99), KL in the reward."""
    total = _ZERO
    for one in said:
        advantages, _ = _gae(one)
        total = total + surrogate(one.log_ratio.exp(), advantages, 0.2, 0.2).sum()
    return total / tokens(said)


def ppo_critic(said: Sequence[Said]) -> Tensor:
    """Half the square of what the critic is off, over all tokens."""
    return sum((((one.values - _gae(one)[1]) ** 2).sum() / 2 for one in said), start=_ZERO) / tokens(said)


def _gae(one: Said) -> tuple[Tensor, Tensor]:
    rewards = -0.05 * (one.logprobs - one.reference).detach()
    rewards[-1] += one.reward
    values, gamma, lam = [*one.values.detach(), torch.zeros(())], 0.99, 0.9
    deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(len(rewards))]
    advantages = [
        sum(((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))), start=_ZERO)
        for t in range(len(deltas))
    ]
    found = torch.stack(advantages)
    return found, found + one.values.detach()


Pair = tuple[Tensor, Tensor, int]
"""A reply's log-prob under policy and reference, and its tokens."""


def dpo(chosen: Sequence[Pair], rejected: Sequence[Pair]) -> Tensor:
    """arXiv 2305.18290, equation 7, with a tenth of the labels wrong (2403.00409)."""
    gains = [0.2 * ((c[0] - c[1]) - (r[0] - r[1])) for c, r in zip(chosen, rejected, strict=True)]
    return torch.stack([-0.9 * logsigmoid(gain) - 0.1 * logsigmoid(-gain) for gain in gains]).mean()


def ipo(chosen: Sequence[Pair], rejected: Sequence[Pair]) -> Tensor:
    """arXiv 2310.12036, equation 17, by the mean over tokens."""
    pairs = zip(chosen, rejected, strict=True)
    return torch.stack([((c[0] - c[1]) / c[2] - (r[0] - r[1]) / r[2] - 1 / (2 * 0.5)) ** 2 for c, r in pairs]).mean()


def kto(chosen: Sequence[Pair], rejected: Sequence[Pair], strangers: Sequence[Pair]) -> Tensor:
    """arXiv 2402.01306, equation 8, with weights of 1.5 and 0.7; strangers are replies beside other prompts."""
    baseline = torch.stack([policy - reference for policy, reference, _ in strangers]).mean().clamp(min=0).detach()
    good = torch.stack([1.5 * torch.sigmoid(-0.3 * (c[0] - c[1] - baseline)) for c in chosen])
    bad = torch.stack([0.7 * torch.sigmoid(0.3 * (r[0] - r[1] - baseline)) for r in rejected])
    return torch.cat([good, bad]).mean()


_ZERO = torch.zeros((), dtype=torch.float64)
POLICY_LOSSES: Mapping[str, tuple[Callable[[Sequence[Said]], Tensor], Mapping[str, Any]]] = {
    "grpo": (grpo, {}),
    "dr_grpo": (dr_grpo, {}),
    "gspo": (gspo, {"loss": {"policy": "gspo", "clip_low": 0.1, "clip_high": 0.15, "aggregation": "sequence_mean"}}),
    "cispo": (cispo, {"loss": {"policy": "cispo", "clip_low": 1.0, "clip_high": 0.3, "aggregation": "token_mean"}}),
    "dapo": (with_entropy, {"loss": {"clip_low": 0.2, "clip_high": 0.28, "entropy_coefficient": 0.02}}),
    "rloo": (rloo, {}),
    "ppo": (ppo, {"advantage": {"estimator": "gae", "gamma": 0.99, "lam": 0.9}, "epochs": 1, "minibatches": 1}),
}
"""By the preset that the learner is given: the loss, and what of the preset is replaced."""
PAIR_LOSSES: Mapping[str, Callable[..., Tensor]] = {"dpo": dpo, "ipo": ipo, "kto": kto}


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
    expected = [gradient(models.policy, loss(said))]
    if critic:
        expected.append(gradient(models.critic, ppo_critic(said)))
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
    expected = gradient(models.policy, PAIR_LOSSES[name](chosen, rejected, *others))
    assert distance(found, expected) <= TOLERANCE
