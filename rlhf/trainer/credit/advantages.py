"""From a batch and the ranks' outputs to the advantage of every token, by the recipe's estimator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf.errors import NotFinite
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.batching.forward_outputs import Column
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.episodes import Episodes, Estimates, episodes_of
from rlhf.trainer.credit.estimators import whiten
from rlhf.trainer.credit.kl import kl_estimate
from rlhf.trainer.credit.registry import ESTIMATORS, called_with, needs_of, needs_reference


def forward_columns(trainer: TrainerConfig) -> tuple[Column, ...]:
    """Return the columns that the ranks must compute before the first step of an update.
    With a single step, recomputed log-probs are those of that forward pass, so nothing is computed before."""
    needs = needs_of(trainer)
    in_reward = trainer.kl.coefficient > 0 and trainer.kl.place == "reward"
    several_steps = trainer.epochs * trainer.minibatches > 1
    wanted: dict[Column, bool] = {
        "proximal": needs.proximal or in_reward or (trainer.old_logprobs == "recomputed" and several_steps),
        "reference": needs_reference(trainer),
        "values": needs.values,
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def with_advantages(
    batch: Batch, trainer: TrainerConfig, kl_coefficient: float, max_tokens: int
) -> tuple[Batch, dict[str, float]]:
    """Return the batch with its advantages (and a critic's targets), and their metrics. Raises `NotFinite` for
    an advantage that is NaN or infinity, and `ConfigError` for a user-defined estimator that cannot be called."""
    if batch.tokens == 0:  # no action tokens: there is nothing to credit
        return batch, {}
    kl, advantage = trainer.kl, trainer.advantage
    episodes = episodes_of(
        batch,
        overlong=trainer.overlong,
        max_tokens=max_tokens,
        kl_in_reward=kl_coefficient if kl.place == "reward" else 0.0,
        estimator=kl.estimator,
    )
    setting = "trainer.advantage.estimator"
    estimate = called_with(ESTIMATORS, advantage.estimator, setting, advantage, advantage.arguments)
    found: Estimates = estimate(episodes)
    advantages = whiten(found.advantages, episodes.mask) if advantage.whiten else found.advantages
    if advantages.shape != episodes.mask.shape or not np.isfinite(advantages[episodes.mask]).all():
        raise NotFinite(
            f"advantage.estimator {advantage.estimator} gave advantages of shape {advantages.shape} for tokens "
            f"{episodes.mask.shape}, or some that are not finite"
        )
    returns = episodes.flat(found.returns) if episodes.values is not None else None
    filled = replace(batch, advantages=episodes.flat(advantages), returns=returns)
    return filled, _metrics(episodes, found.returns, trainer)


def _metrics(episodes: Episodes, returns: np.ndarray, trainer: TrainerConfig) -> dict[str, float]:
    found: dict[str, float] = {}
    if episodes.values is not None:
        values, targets = episodes.values[episodes.mask], returns[episodes.mask]
        found["critic/value_mean"] = float(values.mean())
        if (total := targets.var()) > 0:  # equal returns leave nothing to explain
            found["critic/explained_variance"] = float(1 - (targets - values).var() / total)
    if episodes.reference is not None and episodes.proximal is not None:
        # The estimator of the penalty; k1 with a teacher.
        estimator = trainer.kl.estimator if trainer.kl.coefficient else "k1"
        d = (episodes.proximal - episodes.reference)[episodes.mask]
        found["policy/kl_reference"] = float(kl_estimate(d, estimator).mean())
    return found
