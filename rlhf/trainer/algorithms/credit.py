"""Credit assignment on the controller: from a batch and the ranks' outputs to the advantage of every token. Pure."""

from __future__ import annotations

import numpy as np

from rlhf.trainer.advantages import kl_estimate
from rlhf.trainer.algorithms.episodes import Episodes, episodes_of
from rlhf.trainer.algorithms.estimators import estimate
from rlhf.trainer.algorithms.registry import needs_of, needs_reference
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.batching.forward_outputs import Column
from rlhf.trainer.config import KlEstimator, TrainerConfig


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
    an advantage that is NaN or infinity."""
    if batch.tokens == 0:  # no action tokens: there is nothing to credit
        return batch, {}
    episodes = episodes_of(
        batch,
        overlong=trainer.overlong,
        max_tokens=max_tokens,
        kl_in_reward=kl_coefficient if trainer.kl.place == "reward" else 0.0,
        estimator=trainer.kl.estimator,
    )
    estimates = estimate(episodes, trainer.advantage)
    returns = episodes.flat(estimates.returns) if episodes.values is not None else None
    filled = batch.with_columns(advantages=episodes.flat(estimates.advantages), returns=returns)
    return filled, _metrics(episodes, estimates.returns, _kl_shown(trainer))


def _kl_shown(trainer: TrainerConfig) -> KlEstimator:
    """Return the estimator of the KL metric: the one of the penalty; k1 with a teacher."""
    return trainer.kl.estimator if trainer.kl.coefficient else "k1"


def _metrics(episodes: Episodes, returns: np.ndarray, estimator: KlEstimator) -> dict[str, float]:
    found: dict[str, float] = {}
    if episodes.values is not None:
        found |= {"critic/value_mean": float(episodes.values[episodes.mask].mean())}
        found |= _explained(episodes.values[episodes.mask], returns[episodes.mask])
    if episodes.reference is not None and episodes.proximal is not None:
        log_ratio = (episodes.proximal - episodes.reference)[episodes.mask]
        found["policy/kl_reference"] = float(kl_estimate(log_ratio, estimator).mean())
    return found


def _explained(values: np.ndarray, returns: np.ndarray) -> dict[str, float]:
    """`1 - var(R - v) / var(R)`: 1 is a perfect critic, 0 one that says the mean. Equal returns leave nothing to
    explain, and there is no number."""
    total = returns.var()
    return {"critic/explained_variance": float(1 - (returns - values).var() / total)} if total > 0 else {}
