"""V-trace (arXiv 1802.01561): off-policy values and advantages, for episodes sampled by another policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from rlhf.trainer.advantages.gae import Estimates
from rlhf.trainer.advantages.whitening import masked_values
from rlhf.trainer.arrays import Doubles


def vtrace(
    logprobs: ArrayLike,
    behaviour_logprobs: ArrayLike,
    rewards: ArrayLike,
    values: ArrayLike,
    mask: ArrayLike,
    *,
    discounts: ArrayLike,
    bootstrap: ArrayLike | None = None,
    rho_bar: float | None = 1.0,
    c_bar: float = 1.0,
    policy_rho_bar: float | None = 1.0,
) -> Estimates:
    """Equation 1 of the paper, as its backward recursion over the action tokens: the advantages, and the critic's
    targets (v_s of the paper). The importance weight is already included in the advantage: the loss is `-advantage *
    logprob`, without a ratio.

    All arrays are `[B, T]`; masked positions are ignored completely and are not steps. `discounts` is gamma, or gamma
    per token `[B, T]` with 0 where an episode ends inside a row. `bootstrap [B]` is the value of the state after the
    last action, as in `gae`. `rho_bar` determines whose values are estimated (`None`: the target policy's, with the
    full variance), `c_bar` how far corrections propagate, `policy_rho_bar` caps the weight of the policy gradient.
    """
    live = np.asarray(mask) > 0
    reward, value = masked_values(rewards, live), masked_values(values, live)
    discount = masked_values(np.broadcast_to(discounts, live.shape), live)
    weight = np.exp(masked_values(logprobs, live) - masked_values(behaviour_logprobs, live))
    rho, c, policy_rho = (_capped(weight, bar) for bar in (rho_bar, c_bar, policy_rho_bar))
    next_value = np.zeros(live.shape[0]) if bootstrap is None else np.asarray(bootstrap, dtype=np.float64)
    next_target = next_value
    targets, advantages = np.zeros(live.shape), np.zeros(live.shape)
    for t in reversed(range(live.shape[1])):
        step = live[:, t]
        error = reward[:, t] + discount[:, t] * next_value - value[:, t]
        carried = discount[:, t] * c[:, t] * (next_target - next_value)
        gain = reward[:, t] + discount[:, t] * next_target - value[:, t]
        advantages[:, t] = np.where(step, policy_rho[:, t] * gain, 0.0)
        targets[:, t] = np.where(step, value[:, t] + rho[:, t] * error + carried, 0.0)
        next_target = np.where(step, targets[:, t], next_target)
        next_value = np.where(step, value[:, t], next_value)
    return Estimates(advantages, targets)


def _capped(weight: Doubles, bar: float | None) -> Doubles:
    return weight if bar is None else np.minimum(weight, bar)
