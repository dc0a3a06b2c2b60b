"""Estimators by name: each maps the episodes of a batch to advantages and, with a critic, to its targets. Pure.

One of the user's own is `module:function` with the same signature: `(Episodes, AdvantageConfig) -> Estimates`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from rlhf.config import is_piece, load_piece
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
    vtrace,
    whiten,
)
from rlhf.trainer.config import AdvantageConfig
from rlhf.trainer.episodes import Episodes

Doubles = NDArray[np.float64]
Estimator = Callable[[Episodes, AdvantageConfig], Estimates]


def estimate(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    """Advantages and, with a critic, returns, both `[B, T]`. Raises `NotFinite` when one is no number."""
    estimates = estimator_of(config)(episodes, config)
    advantages = estimates.advantages
    if config.whiten:
        advantages = whiten(advantages, episodes.mask)
    if advantages.shape != episodes.mask.shape or not np.isfinite(advantages[episodes.mask]).all():
        raise NotFinite(
            f"advantage.estimator {config.estimator} gave advantages of shape {advantages.shape} for tokens "
            f"{episodes.mask.shape}, or some that are not finite"
        )
    return Estimates(advantages, estimates.returns)


def estimator_of(config: AdvantageConfig) -> Estimator:
    """The recipe's estimator. Raises `ConfigError` for one of the user's own that cannot be imported."""
    if is_piece(config.estimator):
        own: Estimator = load_piece(config.estimator, "trainer.advantage.estimator")
        return own
    return BY_NAME[config.estimator]


def _of_outcomes(estimates: Callable[..., Doubles], episodes: Episodes, *columns: Doubles) -> Estimates:
    """One advantage an episode from the outcomes of its group, on each of its tokens."""
    advantages = per_group(estimates, episodes.groups, episodes.outcomes, *columns)
    return _without_targets(over_tokens(advantages, episodes.mask))


def _without_targets(advantages: Doubles) -> Estimates:
    return Estimates(advantages, np.zeros_like(advantages))


def _group_relative(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    return _of_outcomes(partial(group_relative, normalize_by_std=config.normalize_by_std), episodes)


def _leave_one_out(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    return _of_outcomes(leave_one_out, episodes)


def _length_weighted(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    return _of_outcomes(length_weighted, episodes, episodes.lengths.astype(np.float64))


def _best_of_group(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    return _of_outcomes(partial(best_of_group, normalize_by_std=config.normalize_by_std), episodes)


def _reinforce_pp(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    return _without_targets(reinforce_plus_plus(episodes.rewards, episodes.mask, gamma=config.gamma))


def _reinforce_pp_baseline(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    return _without_targets(reinforce_plus_plus_baseline(episodes.outcomes, episodes.groups, episodes.mask))


def _remax(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    assert episodes.baselines is not None, "the recipe plays greedy episodes for this estimator"
    return _without_targets(remax(episodes.rewards, episodes.baselines, episodes.mask))


def _gae(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    assert episodes.values is not None, "the recipe has a critic for this estimator"
    given = (episodes.rewards, episodes.values, episodes.mask)
    if config.per_turn:
        return gae_per_turn(*given, episodes.turns, gamma=config.gamma, lam=config.lam, bootstrap=episodes.bootstrap)
    if config.lam_length_alpha is not None:
        return length_adaptive_gae(
            *given,
            gamma=config.gamma,
            alpha=config.lam_length_alpha,
            critic_lam=config.lam,
            bootstrap=episodes.bootstrap,
        )
    return gae(*given, gamma=config.gamma, lam=config.lam, bootstrap=episodes.bootstrap)


def _vtrace(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    assert episodes.values is not None, "the recipe has a critic for this estimator"
    assert episodes.proximal is not None, "the ranks scored the batch for this estimator"
    corrected = vtrace(
        episodes.proximal,
        episodes.behaviour,
        episodes.rewards,
        episodes.values,
        episodes.mask,
        discounts=config.gamma,
        bootstrap=episodes.bootstrap,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        policy_rho_bar=config.rho_bar,
    )
    return Estimates(corrected.advantages, corrected.targets)


def _distillation(episodes: Episodes, config: AdvantageConfig) -> Estimates:
    """What the teacher gives a sampled token above what the policy gives it: the policy gradient of the reverse KL,
    token by token (arXiv 2306.13649)."""
    assert episodes.proximal is not None, "the ranks scored the batch for this estimator"
    assert episodes.reference is not None, "the ranks hold the teacher for this estimator"
    return _without_targets(np.where(episodes.mask, episodes.reference - episodes.proximal, 0.0))


BY_NAME: Mapping[str, Estimator] = {
    "group_relative": _group_relative,
    "leave_one_out": _leave_one_out,
    "length_weighted": _length_weighted,
    "best_of_group": _best_of_group,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "remax": _remax,
    "gae": _gae,
    "vtrace": _vtrace,
    "distillation": _distillation,
}
