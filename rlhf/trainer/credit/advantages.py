"""From a batch and the ranks' outputs to the advantage of every token, by the recipe's estimator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf.errors import ConfigError, NotFinite
from rlhf.trainer.arrays import Doubles
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.batching.forward_outputs import Column
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.estimators import whiten
from rlhf.trainer.credit.kl import kl_estimate, kl_in_reward, log_ratio
from rlhf.trainer.credit.registry import ESTIMATORS, called_with, needs_of, needs_reference


def forward_columns(trainer: TrainerConfig) -> tuple[Column, ...]:
    """Return the columns that the ranks must compute before the first step of an update.
    With a single step, recomputed log-probs are those of that forward pass, so nothing is computed before."""
    needs = needs_of(trainer)
    in_reward = trainer.kl.coefficient > 0 and trainer.kl.place == "reward"
    recomputed = trainer.proximal_logprobs == "recomputed"
    several_steps = trainer.epochs * trainer.minibatches > 1
    wanted: dict[Column, bool] = {
        "proximal_logprobs": needs.proximal or in_reward or (recomputed and several_steps),
        "reference_logprobs": needs_reference(trainer),
        "values": needs.values,
    }
    return tuple(name for name, is_wanted in wanted.items() if is_wanted)


def with_advantages(batch: Batch, trainer: TrainerConfig, kl_coefficient: float) -> tuple[Batch, dict[str, float]]:
    """Return the batch with its advantages (and a critic's targets), and their metrics. `kl_coefficient` is the price
    of a nat of KL to the reference. Raises `NotFinite` for an advantage that is NaN or infinity, and `ConfigError` for
    a user-defined estimator that cannot be called, or that leaves out the targets."""
    if batch.tokens == 0:  # no action tokens: there is nothing to credit
        return batch, {}
    kl, advantage, setting = trainer.kl, trainer.advantage, "trainer.advantage.estimator"
    if kl_coefficient and kl.place == "reward":
        batch = kl_in_reward(batch, kl_coefficient, kl.estimator)
    found = called_with(ESTIMATORS, advantage.estimator, setting, advantage, advantage.arguments)(batch)
    advantages, returns = found if isinstance(found, tuple) else (found, None)
    if advantage.whiten:
        advantages = whiten(advantages)
    if advantages.shape != (batch.tokens,) or not np.isfinite(advantages).all():
        raise NotFinite(
            f"advantage.estimator {advantage.estimator} gave advantages of shape {advantages.shape} for {batch.tokens} "
            "tokens, or some that are not finite"
        )
    if returns is None and trainer.critic is not None:
        raise ConfigError(f"{setting} {advantage.estimator} gave no targets; trainer.critic learns from them")
    return replace(
        batch,
        advantages=advantages.astype(np.float32),
        returns=None if returns is None else returns.astype(np.float32),
    ), _metrics(batch, returns, trainer)


def _metrics(batch: Batch, returns: Doubles | None, trainer: TrainerConfig) -> dict[str, float]:
    found: dict[str, float] = {}
    if batch.values is not None and returns is not None:
        values = batch.values.astype(np.float64)
        found["critic/value_mean"] = float(values.mean())
        if (total := returns.var()) > 0:  # equal returns leave nothing to explain
            found["critic/explained_variance"] = float(1 - (returns - values).var() / total)
    if batch.reference_logprobs is not None and batch.proximal_logprobs is not None:
        # The estimator of the penalty; k1 with a teacher.
        estimator = trainer.kl.estimator if trainer.kl.coefficient else "k1"
        found["policy/kl_reference"] = float(kl_estimate(log_ratio(batch), estimator).mean())
    return found
