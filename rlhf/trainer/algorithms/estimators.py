"""Advantage estimators, as recipes choose them: from the episodes of a batch to advantages and a critic's targets.
Pure.

Registered by name in `rlhf.trainer.algorithms.registry.ESTIMATORS`. A user-defined one has the same signature:
`(Episodes, **arguments) -> Estimates`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from rlhf.errors import NotFinite
from rlhf.trainer.advantages import (
    Estimates,
    best_of_group,
    gae,
    gae_per_turn,
    group_relative,
    leave_one_out,
    length_adaptive_gae,
    length_weighted,
    over_tokens,
    per_group,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rewards_to_go,
    vtrace,
    whiten,
)
from rlhf.trainer.algorithms.episodes import Episodes
from rlhf.trainer.algorithms.registry import ESTIMATORS, called_with
from rlhf.trainer.arrays import Doubles
from rlhf.trainer.config import AdvantageConfig

AdvantageEstimator = Callable[[Episodes], Estimates]


def estimate(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    """Advantages and, with a critic, returns, both `[B, T]`. Raises `NotFinite` for NaN or infinity."""
    estimates = estimator_of(config)(episodes)
    advantages = estimates.advantages
    if config.whiten:
        advantages = whiten(advantages, episodes.mask)
    if advantages.shape != episodes.mask.shape or not np.isfinite(advantages[episodes.mask]).all():
        raise NotFinite(
            f"advantage.estimator {config.estimator} gave advantages of shape {advantages.shape} for tokens "
            f"{episodes.mask.shape}, or some that are not finite"
        )
    return Estimates(advantages, estimates.returns)


def estimator_of(config: AdvantageConfig) -> AdvantageEstimator:
    """Return the recipe's estimator. Raises `ConfigError` for a user-defined one that cannot be imported, or does not
    accept `advantage.arguments`."""
    setting = "trainer.advantage.estimator"
    estimator: AdvantageEstimator = called_with(ESTIMATORS, config.estimator, setting, config, config.arguments)
    return estimator


def _of_outcomes(estimates: Callable[..., Doubles], episodes: Episodes, *columns: Doubles) -> Estimates:
    """One advantage an episode from the outcomes of its group, on each of its tokens."""
    advantages = per_group(estimates, episodes.groups, episodes.outcomes, *columns)
    return _without_targets(over_tokens(advantages, episodes.mask))


def _of_scores(estimates: Callable[..., Doubles], episodes: Episodes) -> Estimates:
    """One advantage an episode from the scores of its group, minus the KL of each token and of those after it. KL among
    the scores would be divided by their deviation: where they hardly differ, it would be all that is learnt."""
    advantages = over_tokens(per_group(estimates, episodes.groups, episodes.scores), episodes.mask)
    return _without_targets(advantages - rewards_to_go(episodes.kl, episodes.mask))


def _without_targets(advantages: Doubles) -> Estimates:
    return Estimates(advantages, np.zeros_like(advantages))


def from_group_relative(episodes: Episodes, *, normalize_by_std: bool) -> Estimates:
    of = _of_scores if normalize_by_std else _of_outcomes
    return of(partial(group_relative, normalize_by_std=normalize_by_std), episodes)


def from_leave_one_out(episodes: Episodes) -> Estimates:
    return _of_outcomes(leave_one_out, episodes)


def from_length_weighted(episodes: Episodes) -> Estimates:
    return _of_outcomes(length_weighted, episodes, episodes.lengths.astype(np.float64))


def from_best_of_group(episodes: Episodes, *, normalize_by_std: bool) -> Estimates:
    of = _of_scores if normalize_by_std else _of_outcomes
    return of(partial(best_of_group, normalize_by_std=normalize_by_std), episodes)


def from_reinforce_pp(episodes: Episodes, *, gamma: float) -> Estimates:
    return _without_targets(reinforce_plus_plus(episodes.rewards, episodes.mask, gamma=gamma))


def from_reinforce_pp_baseline(episodes: Episodes) -> Estimates:
    return _without_targets(reinforce_plus_plus_baseline(episodes.outcomes, episodes.groups, episodes.mask))


def from_remax(episodes: Episodes) -> Estimates:
    assert episodes.baselines is not None, "the recipe plays greedy episodes for this estimator"
    return _without_targets(remax(episodes.rewards, episodes.baselines, episodes.mask))


def from_gae(
    episodes: Episodes, *, gamma: float, lam: float, per_turn: bool, lam_length_alpha: float | None
) -> Estimates:
    assert episodes.values is not None, "the recipe has a critic for this estimator"
    given = (episodes.rewards, episodes.values, episodes.mask)
    if per_turn:
        return gae_per_turn(*given, episodes.turns, gamma=gamma, lam=lam, bootstrap=episodes.bootstrap)
    if lam_length_alpha is not None:
        alpha, bootstrap = lam_length_alpha, episodes.bootstrap
        return length_adaptive_gae(*given, gamma=gamma, alpha=alpha, critic_lam=lam, bootstrap=bootstrap)
    return gae(*given, gamma=gamma, lam=lam, bootstrap=episodes.bootstrap)


def from_vtrace(episodes: Episodes, *, gamma: float, rho_bar: float, c_bar: float) -> Estimates:
    assert episodes.values is not None, "the recipe has a critic for this estimator"
    assert episodes.proximal is not None, "the ranks gave their log-probs for this estimator"
    return vtrace(
        episodes.proximal,
        episodes.behaviour,
        episodes.rewards,
        episodes.values,
        episodes.mask,
        discounts=gamma,
        bootstrap=episodes.bootstrap,
        rho_bar=rho_bar,
        c_bar=c_bar,
        policy_rho_bar=rho_bar,
    )


def from_distillation(episodes: Episodes) -> Estimates:
    """Return the teacher's log-prob minus the policy's, of each sampled token: the policy gradient of the reverse KL,
    token by token (arXiv 2306.13649)."""
    assert episodes.proximal is not None, "the ranks gave their log-probs for this estimator"
    assert episodes.reference is not None, "the ranks hold the teacher for this estimator"
    return _without_targets(np.where(episodes.mask, episodes.reference - episodes.proximal, 0.0))
