"""Advantage estimators: the episodes of a batch in, advantages and a critic's targets out, all `float64 [B, T]`.

A recipe chooses one by its name in `rlhf.trainer.credit.registry.ESTIMATORS`. A user-defined one has the same
signature: `(Episodes, **arguments) -> Estimates`. Equal rewards give exactly zero. An action is a token, or a whole
turn. The environment's tokens between two actions are not a step: there is one discount from an action to the next,
however long the tool's reply was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf.trainer.arrays import Doubles
from rlhf.trainer.credit.episodes import Episodes, Estimates

STD_EPSILON = 1e-6
"""Bounds the amplification of rewards that hardly differ."""
VARIANCE_EPSILON = 1e-8


def group_relative(episodes: Episodes, *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Estimates:
    """Return each reward minus its group's mean. With `normalize_by_std` this is GRPO's estimator (arXiv 2402.03300),
    without it Dr. GRPO's (arXiv 2503.20783)."""
    return _compared(episodes, lambda rewards, _: rewards - rewards.mean(), epsilon if normalize_by_std else None)


def leave_one_out(episodes: Episodes) -> Estimates:
    """Return each reward minus the mean of the *others* of its group (RLOO, arXiv 2402.14740): this baseline does not
    depend on the reward that it is subtracted from, so the policy gradient is unbiased."""
    return _compared(episodes, lambda rewards, _: rewards - (rewards.sum() - rewards) / (rewards.size - 1))


def length_weighted(episodes: Episodes) -> Estimates:
    """Return each reward minus the group's mean weighted by response length: the minimum-variance baseline when a
    sequence's gradient norm grows with its length (OPO, arXiv 2505.23585)."""
    return _compared(episodes, lambda rewards, lengths: rewards - (rewards * lengths).sum() / max(lengths.sum(), 1))


def best_of_group(episodes: Episodes, *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Estimates:
    """Return the best reward minus the second best for the best sample, 0 for the others: the gradient of max@n (arXiv
    2503.19595). A tie for first place gives 0."""

    def lead(rewards: Doubles, _: NDArray[np.int64]) -> Doubles:
        second, best = np.argsort(rewards, kind="stable")[-2:]
        return np.where(np.arange(rewards.size) == best, rewards[best] - rewards[second], 0.0)

    return _compared(episodes, lead, epsilon if normalize_by_std else None)


def reinforce_pp(episodes: Episodes, *, gamma: float, ddof: int = 1) -> Estimates:
    """Return rewards to go, whitened over all action tokens of the batch (REINFORCE++, arXiv 2501.03262)."""
    return _untargeted(whiten(rewards_to_go(episodes.rewards, episodes.mask, gamma=gamma), episodes.mask, ddof=ddof))


def reinforce_pp_baseline(episodes: Episodes, *, ddof: int = 1) -> Estimates:
    """Return the difference from the group's mean, whitened over all action tokens of the batch
    (REINFORCE++-baseline, arXiv 2501.03262): divided by the batch's deviation, not by that of a small group."""
    centred = group_relative(episodes, normalize_by_std=False).advantages
    return _untargeted(whiten(centred, episodes.mask, ddof=ddof))


def remax(episodes: Episodes) -> Estimates:
    """Return rewards to go minus the reward of the greedy answer to the same prompt (ReMax, arXiv 2310.10505)."""
    assert episodes.baselines is not None, "the recipe plays greedy episodes for this estimator"
    baselines = np.where(episodes.mask, episodes.baselines[:, None], 0.0)
    return _untargeted(rewards_to_go(episodes.rewards, episodes.mask) - baselines)


def gae(
    episodes: Episodes, *, gamma: float, lam: float, per_turn: bool = False, lam_length_alpha: float | None = None
) -> Estimates:
    """Generalised advantage estimation (arXiv 1506.02438): `A_t = delta_t + gamma lam A_next`, with
    `delta_t = r_t + gamma V_next - V_t`; the targets are `A + V`.

    `per_turn` takes a whole turn as one action. Its value is that of its first token (the critic's value before the
    reply), its reward the sum over its tokens; all of them get the turn's advantage and return. `lam_length_alpha`
    uses `1 - 1 / (alpha length)` as lambda of the advantages: in long answers the outcome propagates further back
    (VAPO, arXiv 2504.05118); `lam` is then the critic's.
    """
    rewards, values, mask, starts = episodes.rewards, episodes.values, episodes.mask, None
    assert values is not None, "the recipe has a critic for this estimator"
    if per_turn:
        rewards, steps, starts = _turns_as_actions(episodes)
        targeted = _advantages(rewards, values, steps, episodes.bootstrap, gamma, lam)
        spread = [np.take_along_axis(column, starts, axis=1) for column in (targeted, targeted + values)]
        return Estimates(np.where(mask, spread[0], 0.0), np.where(mask, spread[1], 0.0))
    targeted = _advantages(rewards, values, mask, episodes.bootstrap, gamma, lam)
    if lam_length_alpha is None:
        return Estimates(targeted, targeted + values)
    adaptive = 1.0 - 1.0 / np.maximum(lam_length_alpha * episodes.lengths, 1.0)
    return Estimates(_advantages(rewards, values, mask, episodes.bootstrap, gamma, adaptive), targeted + values)


def vtrace(
    episodes: Episodes, *, gamma: ArrayLike, rho_bar: float, c_bar: float, policy_rho_bar: float | None = None
) -> Estimates:
    """V-trace (arXiv 1802.01561, equation 1), for episodes sampled by another policy. The importance weight is already
    included in the advantage: the loss is `-advantage * logprob`, without a ratio.

    `gamma` may be `[B, T]`, with 0 where an episode ends inside a row. `rho_bar` determines whose values are estimated
    (infinity: the target policy's, with the full variance), `c_bar` how far corrections propagate, `policy_rho_bar`
    caps the weight of the policy gradient (None: at `rho_bar`).
    """
    rewards, values, mask = episodes.rewards, episodes.values, episodes.mask
    assert values is not None, "the recipe has a critic for this estimator"
    assert episodes.proximal is not None, "the ranks gave their log-probs for this estimator"
    discount, weight = np.broadcast_to(gamma, mask.shape), np.exp(episodes.proximal - episodes.behaviour)
    bars = (rho_bar, c_bar, rho_bar if policy_rho_bar is None else policy_rho_bar)
    rho, c, policy_rho = (np.minimum(weight, bar) for bar in bars)
    next_value = next_target = episodes.bootstrap
    targets, advantages = np.zeros(mask.shape), np.zeros(mask.shape)
    for t in reversed(range(mask.shape[1])):
        step = mask[:, t]
        error = rewards[:, t] + discount[:, t] * next_value - values[:, t]
        carried = discount[:, t] * c[:, t] * (next_target - next_value)
        gain = rewards[:, t] + discount[:, t] * next_target - values[:, t]
        advantages[:, t] = np.where(step, policy_rho[:, t] * gain, 0.0)
        targets[:, t] = np.where(step, values[:, t] + rho[:, t] * error + carried, 0.0)
        next_target = np.where(step, targets[:, t], next_target)
        next_value = np.where(step, values[:, t], next_value)
    return Estimates(advantages, targets)


def distillation(episodes: Episodes) -> Estimates:
    """Return the teacher's log-prob minus the policy's, of each sampled token: the policy gradient of the reverse KL,
    token by token (arXiv 2306.13649)."""
    assert episodes.proximal is not None, "the ranks gave their log-probs for this estimator"
    assert episodes.reference is not None, "the ranks hold the teacher for this estimator"
    return _untargeted(episodes.reference - episodes.proximal)


def rewards_to_go(rewards: Doubles, mask: NDArray[np.bool_], *, gamma: float = 1.0) -> Doubles:
    """Discounted sum of the rewards from each action on, `G_t = r_t + gamma G_next`, `[B, T]`."""
    return _advantages(rewards, np.zeros(mask.shape), mask, np.zeros(len(mask)), gamma, 1.0)


def whiten(values: Doubles, mask: NDArray[np.bool_], *, ddof: int = 1, shift_mean: bool = True) -> Doubles:
    """`(values - mean) / sqrt(variance + 1e-8)` where `mask` is true, and 0 elsewhere; any shape.

    `ddof` 1 is the sample variance, as for a group's rewards: a batch is a sample of the policy's behaviour. `ddof` 0
    is the population variance, which the authors of REINFORCE++ (arXiv 2501.03262) used. Without `shift_mean` the mean
    is kept: values are scaled but not shifted. Equal values become exactly zero (or keep their mean).
    """
    mean, variance = moments(values, mask, ddof=ddof)
    scale = 1.0 / np.sqrt(variance + VARIANCE_EPSILON)
    whitened: Doubles = np.where(mask, (values - mean) * scale + (0.0 if shift_mean else mean), 0.0)
    return whitened


def moments(values: Doubles, mask: NDArray[np.bool_], *, ddof: int = 1) -> tuple[float, float]:
    """Return mean and variance where `mask` is true: of equal values exactly their value and 0, of none 0 and 0."""
    chosen = values[mask]
    if not chosen.size or np.all(chosen == chosen[0]):
        return float(chosen[0]) if chosen.size else 0.0, 0.0
    return float(chosen.mean()), float(chosen.var(ddof=ddof))


def _compared(
    episodes: Episodes, estimate: Callable[[Doubles, NDArray[np.int64]], Doubles], epsilon: float | None = None
) -> Estimates:
    """Return one advantage an episode, on each of its tokens: `estimate(rewards, lengths)` of its group, and exactly 0
    where the group has one reward or equal ones, however their mean is rounded.

    With `epsilon` it is divided by the group's sample standard deviation plus `epsilon`, and each token then loses its
    KL and that of those after it. KL among the rewards would be divided by their deviation: where they hardly differ,
    it would be all that is learnt.
    """
    given = episodes.outcomes if epsilon is None else episodes.scores
    advantages = np.zeros(given.shape)
    for group in np.unique(episodes.groups):
        members = episodes.groups == group
        rewards = given[members]
        if rewards.size > 1 and np.any(rewards != rewards[0]):
            scale = 1.0 if epsilon is None else float(rewards.std(ddof=1)) + epsilon
            advantages[members] = estimate(rewards, episodes.lengths[members]) / scale
    on_tokens = np.where(episodes.mask, advantages[:, None], 0.0)
    return _untargeted(on_tokens if epsilon is None else on_tokens - rewards_to_go(episodes.kl, episodes.mask))


def _untargeted(advantages: Doubles) -> Estimates:
    return Estimates(advantages, np.zeros_like(advantages))


def _advantages(
    rewards: Doubles, values: Doubles, steps: NDArray[np.bool_], bootstrap: Doubles, gamma: float, lam: float | Doubles
) -> Doubles:
    """GAE's recursion over the positions that are `steps`, `[B, T]`; `bootstrap` `[B]` is the value after the last."""
    decay, following = gamma * lam, bootstrap
    running, advantages = np.zeros(len(steps)), np.zeros(steps.shape)
    for t in reversed(range(steps.shape[1])):
        step = steps[:, t]
        delta = rewards[:, t] + gamma * following - values[:, t]
        running = np.where(step, delta + decay * running, running)
        following = np.where(step, values[:, t], following)
        advantages[:, t] = np.where(step, running, 0.0)
    return advantages


def _turns_as_actions(episodes: Episodes) -> tuple[Doubles, NDArray[np.bool_], NDArray[np.int64]]:
    """Return the rewards of turns at their first tokens, where these are, and for every token the column of its
    turn's first, all `[B, T]`."""
    rewards, firsts = np.zeros(episodes.mask.shape), np.zeros_like(episodes.mask)
    starts = np.zeros(episodes.mask.shape, np.int64)
    for row, (live, turns) in enumerate(zip(episodes.mask, episodes.turns, strict=True)):
        for turn in np.unique(turns[live]):
            own = np.flatnonzero(live & (turns == turn))
            firsts[row, own[0]] = True
            rewards[row, own[0]] = episodes.rewards[row, own].sum()
            starts[row, own] = own[0]
    return rewards, firsts, starts
