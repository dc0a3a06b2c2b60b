"""Advantage estimators: a batch in, the advantages of its ACTION tokens out, `float64 [N]`; or a pair, with a critic's
targets `[N]` second.

A recipe chooses one by its name in `rlhf.trainer.credit.registry.ESTIMATORS`. A user-defined one has the same
signature: `(Batch, **arguments) -> advantages`. Equal rewards give exactly zero. An action is a token, or a whole turn.
The environment's tokens between two actions are not in the columns: there is one discount from an action to the next,
however long the tool's reply was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from rlhf.trainer.arrays import Doubles, Ints, in_rows, mask_of
from rlhf.trainer.batching.batch import Batch

STD_EPSILON = 1e-6
"""Bounds the amplification of rewards that hardly differ."""
VARIANCE_EPSILON = 1e-8


def group_relative(batch: Batch, *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Doubles:
    """Return each reward minus its group's mean. With `normalize_by_std` this is GRPO's estimator (arXiv 2402.03300),
    without it Dr. GRPO's (arXiv 2503.20783)."""
    return _compared(batch, lambda rewards, _: rewards - rewards.mean(), epsilon if normalize_by_std else None)


def leave_one_out(batch: Batch) -> Doubles:
    """Return each reward minus the mean of the *others* of its group (RLOO, arXiv 2402.14740): this baseline does not
    depend on the reward that it is subtracted from, so the policy gradient is unbiased."""
    return _compared(batch, lambda rewards, _: rewards - (rewards.sum() - rewards) / (rewards.size - 1))


def length_weighted(batch: Batch) -> Doubles:
    """Return each reward minus the group's mean weighted by response length: the minimum-variance baseline when a
    sequence's gradient norm grows with its length (OPO, arXiv 2505.23585)."""
    return _compared(batch, lambda rewards, lengths: rewards - (rewards * lengths).sum() / max(lengths.sum(), 1))


def best_of_group(batch: Batch, *, normalize_by_std: bool, epsilon: float = STD_EPSILON) -> Doubles:
    """Return the best reward minus the second best for the best sample, 0 for the others: the gradient of max@n (arXiv
    2503.19595). A tie for first place gives 0."""

    def lead(rewards: Doubles, _: Ints) -> Doubles:
        second, best = np.argsort(rewards, kind="stable")[-2:]
        return np.where(np.arange(rewards.size) == best, rewards[best] - rewards[second], 0.0)

    return _compared(batch, lead, epsilon if normalize_by_std else None)


def reinforce_pp(batch: Batch, *, gamma: float, ddof: int = 1) -> Doubles:
    """Return rewards to go, whitened over all action tokens of the batch (REINFORCE++, arXiv 2501.03262)."""
    return whiten(rewards_to_go(batch.rewards, batch.lengths, gamma=gamma), ddof=ddof)


def reinforce_pp_baseline(batch: Batch, *, ddof: int = 1) -> Doubles:
    """Return the difference from the group's mean, whitened over all action tokens of the batch
    (REINFORCE++-baseline, arXiv 2501.03262): divided by the batch's deviation, not by that of a small group."""
    return whiten(group_relative(batch, normalize_by_std=False), ddof=ddof)


def remax(batch: Batch) -> Doubles:
    """Return rewards to go minus the reward of the greedy answer to the same prompt (ReMax, arXiv 2310.10505)."""
    assert batch.baselines is not None, "the recipe plays greedy episodes for this estimator"
    return rewards_to_go(batch.rewards, batch.lengths) - np.repeat(batch.baselines, batch.lengths)


def gae(
    batch: Batch, *, gamma: float, lam: float, per_turn: bool = False, lam_length_alpha: float | None = None
) -> tuple[Doubles, Doubles]:
    """Generalised advantage estimation (arXiv 1506.02438): `A_t = delta_t + gamma lam A_next`, with
    `delta_t = r_t + gamma V_next - V_t`; the targets are `A + V`.

    `per_turn` takes a whole turn as one action. Its value is that of its first token (the critic's value before the
    reply), its reward the sum over its tokens; all of them get the turn's advantage and return. `lam_length_alpha`
    uses `1 - 1 / (alpha length)` as lambda of the advantages: in long answers the outcome propagates further back
    (VAPO, arXiv 2504.05118); `lam` is then the critic's.
    """
    assert batch.values is not None, "the recipe has a critic for this estimator"
    rewards, values, lengths, sizes = batch.rewards, batch.values.astype(np.float64), batch.lengths, None
    if per_turn:
        episodes = np.repeat(np.arange(len(lengths)), lengths)
        firsts = np.flatnonzero(np.diff(episodes, prepend=-1) | np.diff(batch.turns, prepend=-1))
        rewards = np.array([turn.sum() for turn in np.split(rewards, firsts[1:])])
        values, lengths = values[firsts], np.bincount(episodes[firsts], minlength=len(lengths))
        sizes = np.diff(firsts, append=batch.tokens)
    advantages = _advantages(rewards, values, lengths, batch.bootstrap, gamma, lam)
    returns = advantages + values
    if sizes is not None:
        return np.repeat(advantages, sizes), np.repeat(returns, sizes)
    if lam_length_alpha is not None:
        adaptive = 1.0 - 1.0 / np.maximum(lam_length_alpha * lengths, 1.0)
        advantages = _advantages(rewards, values, lengths, batch.bootstrap, gamma, adaptive)
    return advantages, returns


def vtrace(
    batch: Batch, *, gamma: ArrayLike, rho_bar: float = 1.0, c_bar: float = 1.0, policy_rho_bar: float | None = None
) -> tuple[Doubles, Doubles]:
    """V-trace (arXiv 1802.01561, equation 1), for episodes sampled by another policy. The importance weight is already
    included in the advantage: the loss is `-advantage * logprob`, without a ratio.

    `gamma` may be `[N]`, with 0 where an episode ends inside a sample. `rho_bar` determines whose values are estimated
    (infinity: the target policy's, with the full variance), `c_bar` how far corrections propagate, `policy_rho_bar`
    caps the weight of the policy gradient (None: at `rho_bar`).
    """
    assert batch.values is not None, "the recipe has a critic for this estimator"
    assert batch.proximal_logprobs is not None, "the ranks gave their log-probs for this estimator"
    rewards, values = batch.rows(batch.rewards), batch.rows(batch.values)
    discount = batch.rows(np.broadcast_to(gamma, batch.tokens))
    weight = np.exp(batch.rows(batch.proximal_logprobs) - batch.rows(batch.behaviour_logprobs))
    bars = (rho_bar, c_bar, rho_bar if policy_rho_bar is None else policy_rho_bar)
    rho, c, policy_rho = (np.minimum(weight, bar) for bar in bars)
    next_value = next_target = batch.bootstrap
    targets, advantages = np.zeros(rewards.shape), np.zeros(rewards.shape)
    for t in reversed(range(rewards.shape[1])):
        step = t < batch.lengths
        error = rewards[:, t] + discount[:, t] * next_value - values[:, t]
        carried = discount[:, t] * c[:, t] * (next_target - next_value)
        advantages[:, t] = policy_rho[:, t] * (rewards[:, t] + discount[:, t] * next_target - values[:, t])
        targets[:, t] = values[:, t] + rho[:, t] * error + carried
        next_target = np.where(step, targets[:, t], next_target)
        next_value = np.where(step, values[:, t], next_value)
    return advantages[batch.mask], targets[batch.mask]


def distillation(batch: Batch) -> Doubles:
    """Return the teacher's log-prob minus the policy's, of each sampled token: the policy gradient of the reverse KL,
    token by token (arXiv 2306.13649)."""
    assert batch.proximal_logprobs is not None, "the ranks gave their log-probs for this estimator"
    assert batch.reference_logprobs is not None, "the ranks hold the teacher for this estimator"
    return batch.reference_logprobs.astype(np.float64) - batch.proximal_logprobs


def rewards_to_go(rewards: Doubles, lengths: Ints, *, gamma: float = 1.0) -> Doubles:
    """Discounted sum of the rewards from each action on, `G_t = r_t + gamma G_next`, `[N]`, of samples of `lengths`
    actions."""
    return _advantages(rewards, np.zeros(len(rewards)), lengths, np.zeros(len(lengths)), gamma, 1.0)


def whiten(values: Doubles, *, ddof: int = 1, shift_mean: bool = True) -> Doubles:
    """`(values - mean) / sqrt(variance + 1e-8)`, `[N]`.

    `ddof` 1 is the sample variance, as for a group's rewards: a batch is a sample of the policy's behaviour. `ddof` 0
    is the population variance, which the authors of REINFORCE++ (arXiv 2501.03262) used. Without `shift_mean` the mean
    is kept: values are scaled but not shifted. Equal values become exactly zero (or keep their mean).
    """
    mean, variance = moments(values, ddof=ddof)
    scale = 1.0 / np.sqrt(variance + VARIANCE_EPSILON)
    whitened: Doubles = (values - mean) * scale + (0.0 if shift_mean else mean)
    return whitened


def moments(values: Doubles, *, ddof: int = 1) -> tuple[float, float]:
    """Return mean and variance: of equal values exactly their value and 0, of none 0 and 0."""
    if not values.size or np.all(values == values[0]):
        return float(values[0]) if values.size else 0.0, 0.0
    return float(values.mean()), float(values.var(ddof=ddof))


def _compared(batch: Batch, estimate: Callable[[Doubles, Ints], Doubles], epsilon: float | None = None) -> Doubles:
    """Return one advantage per episode, on each of its tokens: `estimate(rewards, lengths)` of its group, and exactly 0
    where the group has one reward or equal ones, however their mean is rounded.

    With `epsilon` it is divided by the group's sample standard deviation plus `epsilon`, and each token then loses its
    KL and that of those after it. If the rewards contained the KL, it would be divided by their deviation: where they
    hardly differ, the policy would learn nothing else.
    """
    given, lengths = batch.outcomes if epsilon is None else batch.scores, batch.lengths
    advantages = np.zeros(given.shape)
    for group in np.unique(batch.groups):
        members = batch.groups == group
        rewards = given[members]
        if rewards.size > 1 and np.any(rewards != rewards[0]):
            scale = 1.0 if epsilon is None else float(rewards.std(ddof=1)) + epsilon
            advantages[members] = estimate(rewards, lengths[members]) / scale
    on_tokens = np.repeat(advantages, lengths)
    return on_tokens if epsilon is None else on_tokens - rewards_to_go(batch.kl, lengths)


def _advantages(
    rewards: Doubles, values: Doubles, lengths: Ints, bootstrap: Doubles, gamma: float, lam: float | Doubles
) -> Doubles:
    """GAE's recursion over the actions of samples of `lengths` actions, `[N]`; `bootstrap` `[B]` is the value after the
    last."""
    decay, following, running = gamma * lam, bootstrap, np.zeros(len(lengths))
    reward, value, live = in_rows(rewards, lengths), in_rows(values, lengths), mask_of(lengths)
    advantages = np.zeros(live.shape)
    for t in reversed(range(live.shape[1])):
        delta = reward[:, t] + gamma * following - value[:, t]
        running = np.where(live[:, t], delta + decay * running, running)
        following = np.where(live[:, t], value[:, t], following)
        advantages[:, t] = running
    return advantages[live]
