"""Token-level losses: `Actions` in, `(loss of every token [A], metrics)` out; and the critic's.

As in the papers, no log-ratio is clamped before `exp`: a clamp would silently remove the gradient of exactly those
tokens that deviate most. A ratio that overflows makes the loss infinite, and an infinite or NaN loss ends the run with
a named error.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.trainer.losses.actions import Actions, LossMetrics, largest, over_sequences


def policy_gradient(actions: Actions) -> tuple[Tensor, LossMetrics]:
    """Return `-A log pi` (REINFORCE, Williams 1992): correct only for samples of the current policy."""
    return -actions.advantages * actions.logprobs, LossMetrics(len(actions.logprobs))


def ppo(
    actions: Actions, *, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, LossMetrics]:
    """PPO's clipped surrogate (arXiv 1707.06347), `-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)`.

    Two bounds: clip-higher (DAPO, arXiv 2503.14476). `dual_clip` `c > 1` caps the loss of a token of negative advantage
    at `-c A` (arXiv 1912.09729), which bounds the effect of a single token whose probability increased.
    """
    ratio = torch.exp(actions.log_ratio)
    return clipped(ratio, actions.advantages, clip_low, clip_high, dual_clip), clip_metrics(
        ratio, actions.advantages, clip_low, clip_high, dual_clip
    )


def gspo(actions: Actions, *, clip_low: float, clip_high: float) -> tuple[Tensor, LossMetrics]:
    """PPO with one ratio per sequence, the geometric mean of its tokens' ratios (arXiv 2507.18071).

    In the paper's GSPO-token form: the value is the sequence's, and the gradient reaches a token through its own
    log-prob and its own advantage. With one advantage per sequence it equals GSPO exactly; with an advantage per token
    (PPO with a critic, process rewards) each token keeps its own credit.
    """
    sequence = over_sequences(actions.log_ratio, actions.sequences, "mean")
    ratio = torch.exp(sequence + actions.logprobs - actions.logprobs.detach())
    return clipped(ratio, actions.advantages, clip_low, clip_high), clip_metrics(
        ratio, actions.advantages, clip_low, clip_high
    )


def cispo(actions: Actions, *, clip_low: float, clip_high: float) -> tuple[Tensor, LossMetrics]:
    """REINFORCE weighted by the clipped ratio without gradient: `-sg(clip(r)) A log pi` (arXiv 2506.13585).

    No token loses its gradient, unlike PPO. Bounds are relative as in the other losses, `[1 - clip_low, 1 +
    clip_high]`.
    """
    ratio = torch.exp(actions.log_ratio.detach())
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    sums = {
        "policy/clip_fraction_low": (ratio < 1 - clip_low).float().sum(),
        "policy/clip_fraction_high": (ratio > 1 + clip_high).float().sum(),
    }
    return -weight * actions.advantages * actions.logprobs, LossMetrics(len(ratio), sums, _ratio_max(ratio))


def sapo(actions: Actions, *, temperature_positive: float, temperature_negative: float) -> tuple[Tensor, LossMetrics]:
    """Return a soft gate in place of the clip: `-(4 / t) sigmoid(t (r - 1)) A`, with `t` chosen by the sign of A (arXiv
    2511.20347)."""
    ratio = torch.exp(actions.log_ratio)
    positive, negative = (torch.full_like(ratio, t) for t in (temperature_positive, temperature_negative))
    temperature = torch.where(actions.advantages > 0, positive, negative)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return -gate * actions.advantages, LossMetrics(len(ratio), maxima=_ratio_max(ratio))


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = None) -> Tensor:
    """Return the critic's loss of every token, `(v - R)² / 2`, any shape.

    With `clip`, the maximum of that and of the loss of `v` clipped to within `clip` of `old_values` (PPO's code, arXiv
    1707.06347; see also 2005.12729), so that one update cannot move the critic farther than that.
    """
    plain = (values - returns).square()
    if clip is None:
        return plain / 2
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(plain, (near - returns).square()) / 2


def clipped(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """Return the negative of PPO's surrogate, any shape."""
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, bounded * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clip_metrics(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> LossMetrics:
    """Count the tokens whose gradient is removed by the clip, on either side, and by the dual clip; find the largest
    ratio."""
    negative, positive = advantages < 0, advantages > 0
    sums = {
        "policy/clip_fraction_low": (negative & (ratio < 1 - clip_low)).float().sum(),
        "policy/clip_fraction_high": (positive & (ratio > 1 + clip_high)).float().sum(),
    }
    if dual_clip is not None:
        sums["policy/clip_fraction_dual"] = (negative & (ratio > dual_clip)).float().sum()
    return LossMetrics(len(ratio), sums, _ratio_max(ratio))


def _ratio_max(ratio: Tensor) -> dict[str, Tensor]:
    return {"policy/ratio_max": largest(ratio.detach())}
