"""How far apart log-probs of engine and learner may be and still be those of the same weights. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

MARGIN = 4
"""How much more than one measurement of rounding is still rounding. An engine that rounds each product otherwise is
off by about one measurement (0.6 to 1.6 of one over depths of 2 to 24 layers and logits to ±30)."""
QUANTILE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTolerance:
    """Nats: the largest mean of absolute differences, and a size that at most this `share` of the tokens may pass."""

    mean: float
    high: float
    share: float

    def times(self, factor: float) -> LogprobTolerance:
        return replace(self, mean=self.mean * factor, high=self.high * factor)

    def or_looser(self, other: LogprobTolerance) -> LogprobTolerance:
        """The larger mean, and the larger size with the share of tokens that may pass it."""
        looser = other if other.high > self.high else self
        return replace(looser, mean=max(self.mean, other.mean))

    def refuse(self, mean: float, share: float) -> bool:
        """Whether differences of this mean, this share of them above `high`, are too large. What is no number is for
        others to judge."""
        return mean > self.mean or share > self.share


def uniform_tolerance(tolerance: float) -> LogprobTolerance:
    """No token is off by more than `tolerance`."""
    return LogprobTolerance(mean=tolerance, high=tolerance, share=0)


EXACT = uniform_tolerance(1e-4)
"""Of float32, where engine and learner agree to about 1e-6."""


def limits_of(mean: float, quantile: float) -> LogprobTolerance:
    """What is allowed where rounding alone moves log-probs by `mean` nats, and 1 - `QUANTILE` of them by `quantile`."""
    return EXACT.or_looser(LogprobTolerance(mean=MARGIN * mean, high=MARGIN * quantile, share=1 - QUANTILE))


def measured(rounding: NDArray[np.float32]) -> LogprobTolerance:
    """`limits_of` absolute differences that rounding made, `[N]`."""
    return limits_of(float(rounding.mean()), float(np.quantile(rounding, QUANTILE)))
