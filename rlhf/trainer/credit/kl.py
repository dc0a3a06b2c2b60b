"""KL divergence of two policies, token by token, and the control of its coefficient.

Every function takes `d = log policy - log reference`, in nats and in any shape, at tokens that the policy sampled, as a
numpy array or a tensor, and estimates KL(policy, reference) (Schulman, "Approximating KL divergence", 2020):

| estimator | value            | of the expectation          | its own gradient, d/d log policy |
|-----------|------------------|-----------------------------|----------------------------------|
| k1        | d                | unbiased, may be negative   | 1: expectation 0, teaches nothing |
| k2        | d² / 2           | biased, never negative      | d: the gradient of KL, on-policy  |
| k3        | exp(-d) - 1 + d  | unbiased, never negative    | 1 - exp(-d): of KL(reference, policy), on-policy |

So in a *reward*, where only values count, take k1 or k3; in a *loss* take k2, or k3 with `exact_gradient`. Nothing is
clamped: a penalty that is cut off pulls least where the policy is farthest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from rlhf.errors import CheckpointError
from rlhf.trainer.arrays import Doubles
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.config import KlEstimator

if TYPE_CHECKING:
    from torch import Tensor

V = TypeVar("V", Doubles, "Tensor")
FILE = "controller.json"


def kl_estimate(d: V, estimator: KlEstimator) -> V:
    """Return the estimate of the divergence at every token."""
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d * d / 2
    return (np.expm1(-d) if isinstance(d, np.ndarray) else (-d).expm1()) + d


def kl_in_reward(batch: Batch, coefficient: float, estimator: KlEstimator) -> Batch:
    """Return the batch with the price of its KL, `coefficient` a nat, taken off every token's reward and every
    outcome (arXiv 1909.08593)."""
    own = kl_estimate(log_ratio(batch), estimator)
    outcomes, price = batch.scores - coefficient * batch.rows(own).sum(1), coefficient * own
    return replace(batch, outcomes=outcomes, kl=price, rewards=batch.rewards - price)


def log_ratio(batch: Batch) -> Doubles:
    """Return log policy - log reference of every ACTION token, `[N]`."""
    assert batch.proximal_logprobs is not None, "the ranks gave their log-probs"
    assert batch.reference_logprobs is not None, "the ranks hold the reference"
    return batch.proximal_logprobs.astype(np.float64) - batch.reference_logprobs


def kl_in_loss(d: Tensor, estimator: KlEstimator, *, exact_gradient: bool = False) -> Tensor:
    """Return the same with its gradient. With `exact_gradient` that is k2's, whose expectation on-policy is the
    gradient of KL (arXiv 2506.09477)."""
    value = kl_estimate(d, estimator)
    if not exact_gradient:
        return value
    carrier = kl_estimate(d, "k2")
    return value.detach() + carrier - carrier.detach()


@dataclass(frozen=True, slots=True)
class KLController:
    """A KL coefficient: constant, or with a `target` adapted to it (arXiv 1909.08593): each update multiplies it by
    `1 + clip(kl / target - 1, -0.2, 0.2) * samples / horizon`."""

    coefficient: float
    target: float | None
    """Target KL in nats, in the same unit as the `kl` given to `after` (per token, or per sequence)."""
    horizon: float
    """Number of samples in which the coefficient may change by a fifth."""

    def after(self, kl: float, samples: int) -> KLController:
        """Return the controller of the next update, after `samples` samples with mean divergence `kl`."""
        if self.target is None:
            return self
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1 + error * samples / self.horizon))


def write_controller(path: Path, coefficient: float) -> Path:
    """Write the coefficient; returns the file."""
    (path / FILE).write_text(json.dumps({"kl_coefficient": coefficient}))
    return path / FILE


def read_controller(path: Path) -> float:
    """Return the coefficient in a checkpoint. Raises `CheckpointError` when it has none."""
    try:
        return float(json.loads((path / FILE).read_text())["kl_coefficient"])
    except (FileNotFoundError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path / FILE} cannot be read ({error}); use another checkpoint") from None
