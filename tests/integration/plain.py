"""The gradient of an update, once more: plain transformers and torch in float64, one sequence at a time, formulas as
their papers print them. Nothing of the learner is used but its data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rlhf.types import Group, Segment

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
