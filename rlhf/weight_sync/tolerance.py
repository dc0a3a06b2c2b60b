"""Tolerances for the difference between engine and learner log-probs of the same weights. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

MARGIN = 4
"""Factor on one measurement of rounding that still counts as rounding. An engine that rounds each product differently
deviates by about one measurement (factors of 0.6 to 1.6 for depths of 2 to 24 layers and logits to ±30)."""
MEAN_MARGIN, MANY_TOKENS = 2, 80
"""The same for the mean over at least this many tokens: over 88 tokens healthy engines have factors of 0.6 to 1.35,
vLLM on a CPU 0.8 to 0.9, and a fault in one layer of 24 has 3.6, of 48 2.1 (`benchmarks/canary/`)."""
FEW_MARGIN = 3
"""The same for 22 of these tokens: healthy engines have factors of up to 1.9, and a fault in one layer of 24 is found,
of 48 not always."""
QUANTILE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobTolerance:
    """In nats: the maximum mean of absolute differences, and a limit that at most this `share` of the tokens may
    exceed."""

    mean: float
    high: float
    share: float

    def times(self, factor: float) -> LogprobTolerance:
        return replace(self, mean=self.mean * factor, high=self.high * factor)

    def or_looser(self, other: LogprobTolerance) -> LogprobTolerance:
        """Return the larger mean, and the larger limit with its share of tokens."""
        looser = other if other.high > self.high else self
        return replace(looser, mean=max(self.mean, other.mean))

    def refuse(self, mean: float, above: int, tokens: int) -> bool:
        """Return whether differences of `tokens` log-probs with this mean, `above` of them larger than `high`, are too
        large. Where a share may be larger, one token always may: rounding has a long tail, and 1 % of a canary's 88
        tokens is less than one. NaN is handled elsewhere."""
        return mean > self.mean or above > (max(self.share * tokens, 1) if self.share else 0)


def uniform_tolerance(tolerance: float) -> LogprobTolerance:
    """No token may deviate by more than `tolerance`."""
    return LogprobTolerance(mean=tolerance, high=tolerance, share=0)


EXACT = uniform_tolerance(1e-4)
"""For float32, where engine and learner agree to about 1e-6."""


def limits_of(mean: float, quantile: float, mean_margin: float = MARGIN) -> LogprobTolerance:
    """Return the tolerance where rounding alone changes log-probs by `mean` nats on average, and 1 - `QUANTILE` of them
    by `quantile`."""
    return EXACT.or_looser(LogprobTolerance(mean=mean_margin * mean, high=MARGIN * quantile, share=1 - QUANTILE))


def measured(rounding: NDArray[np.float32], *, few: bool = False) -> LogprobTolerance:
    """`limits_of` for absolute differences caused by rounding, `[N]`, where all of these tokens are compared, or a
    `few` of them."""
    many = len(rounding) >= MANY_TOKENS
    margin = FEW_MARGIN if many and few else MEAN_MARGIN if many else MARGIN
    return limits_of(float(rounding.mean()), float(np.quantile(rounding, QUANTILE)), margin)
