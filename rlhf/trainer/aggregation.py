"""Loss aggregation over an optimizer step: the weight of each token, and the common denominator.

Every aggregation is a weighted sum over tokens, divided by one denominator. The weights of a sample depend only on that
sample and denominators are additive. So a batch may be split into micro-batches anywhere between samples: divide each
part by the denominator of the whole, and the parts sum to the whole. Numpy only: the controller computes both, and the
ranks sum (`rlhf.trainer.losses.aggregate`).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
"""`token_mean`: mean over all tokens (DAPO, arXiv 2503.14476). `sequence_mean`: mean over samples of their token means
(GRPO, arXiv 2402.03300). `sequence_sum`: mean over samples of their token sums. `constant`: `sequence_sum` divided by a
constant number of tokens (Dr.GRPO, arXiv 2503.20783)."""


def token_weights(lengths: NDArray[np.int64], aggregation: Aggregation) -> NDArray[np.float64]:
    """Return the weight of each token of samples with `lengths` `[S]` tokens, `[S]`."""
    return 1.0 / np.maximum(lengths, 1) if aggregation == "sequence_mean" else np.ones(len(lengths))


def denominator(lengths: NDArray[np.int64], aggregation: Aggregation, constant_tokens: float = 1.0) -> float:
    """Return the divisor of the weighted sum: tokens, or samples, or samples times `constant_tokens`. `lengths` `[S]`
    are those of the samples that count; without any, the denominator of one sample or one token."""
    count = lengths.sum() if aggregation == "token_mean" else len(lengths)
    return max(float(count), 1.0) * (constant_tokens if aggregation == "constant" else 1.0)
