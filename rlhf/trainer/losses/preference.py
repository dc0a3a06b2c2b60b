"""Preference losses: log-probs or rewards of whole answers in, the loss of every pair or answer out.

`chosen` and `rejected` are float `[N]`: log-probs of an answer summed over its tokens, or a reward model's scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from rlhf.trainer.losses.actions import LossMetrics


@dataclass(frozen=True, slots=True, eq=False)
class ScoredPairs:
    """Log-probs of answers under policy and reference, each `[N]` in nats, summed over the tokens of the answer."""

    chosen: Tensor
    rejected: Tensor
    reference_chosen: Tensor
    reference_rejected: Tensor

    @property
    def margin(self) -> Tensor:
        """The policy's log-ratio of the chosen over the rejected answer minus the reference's, `[N]` in nats."""
        return (self.chosen - self.reference_chosen) - (self.rejected - self.reference_rejected)

    def per_token(self, chosen_tokens: Tensor, rejected_tokens: Tensor) -> ScoredPairs:
        """Return the same pairs with the mean instead of the sum over an answer's tokens."""
        return ScoredPairs(
            self.chosen / chosen_tokens,
            self.rejected / rejected_tokens,
            self.reference_chosen / chosen_tokens,
            self.reference_rejected / rejected_tokens,
        )


def implicit_reward(logprobs: Tensor, reference_logprobs: Tensor, beta: float) -> Tensor:
    """Return the implicit reward of a policy trained with `beta`, `beta log(policy / reference)`, without gradient."""
    return beta * (logprobs - reference_logprobs).detach()


def dpo(pairs: ScoredPairs, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """`-log sigmoid(beta h)` of the margin h (arXiv 2305.18290), `[N]`.

    `label_smoothing` is the probability that a label is wrong: the loss is the mixture over both orders (cDPO), which
    is bounded below, unlike the rescaled unbiased form (arXiv 2403.00409).
    """
    logit = beta * pairs.margin
    return -(1 - label_smoothing) * logsigmoid(logit) - label_smoothing * logsigmoid(-logit)


def ipo(pairs: ScoredPairs, beta: float) -> Tensor:
    """`(h - 1 / (2 beta))²` of the margin h (arXiv 2310.12036), `[N]`: a target margin, not to be exceeded.

    The target is fixed while a sum of log-probs grows with the answer, so train on `pairs.per_token(…)`.
    """
    return (pairs.margin - 1 / (2 * beta)).square()


def divergence(logprobs: Tensor, reference_logprobs: Tensor) -> LossMetrics:
    """Return the log-ratios of answers `[N]`, policy over reference; KTO's baseline is computed from their mean over
    all ranks (`rlhf.trainer.pair_learner.kto_baseline`)."""
    return LossMetrics(len(logprobs), {"pairs/log_ratio": (logprobs - reference_logprobs).detach().sum()})


def kto(
    logprobs: Tensor,
    reference_logprobs: Tensor,
    desirable: Tensor,
    baseline: Tensor,
    beta: float,
    *,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Tensor:
    """Losses of single answers, each desirable or not (`bool [N]`), without pairs (arXiv 2402.01306), `[N]`: `weight (1
    - sigmoid(±beta (log ratio - baseline)))`."""
    gain = beta * (logprobs - reference_logprobs - baseline)
    wanted = desirable_weight * torch.sigmoid(-gain)
    return torch.where(desirable, wanted, undesirable_weight * torch.sigmoid(gain))


def bradley_terry(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0, centering: float = 0.0) -> Tensor:
    """`-log sigmoid(c - r - margin)` of a reward model's scores (arXiv 2203.02155), `[N]`.

    `margin` requires a larger difference where the preference is strong (arXiv 2307.09288); `centering` times `(c +
    r)²` keeps the scores around 0, which the rest leaves undetermined (arXiv 2312.09244).
    """
    return -logsigmoid(chosen - rejected - margin) + centering * (chosen + rejected).square()
