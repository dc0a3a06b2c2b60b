"""The view of a batch for estimators, one episode per row, `[B, T]` over its ACTION tokens; and what they answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.arrays import Doubles, Floats, Ints
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.config import KlEstimator, OverlongConfig
from rlhf.trainer.credit.kl import kl_estimate


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """The trainable episodes of a batch, in its order.

    `scores` `[B]` include the length penalty; `outcomes` `[B]` are the scores minus, where KL is in the reward, the sum
    of `kl` `[B, T]`, each token's KL to the reference times its price.
    `groups` `[B]` is the comparison group of each: the same role in the same group. `lengths` `[B]` are its ACTION
    tokens; `mask` `[B, T]` is true on them, and every other `[B, T]` column is 0 elsewhere; `turns` numbers their
    turns. `rewards` `[B, T]` are per token, and sum to the outcome: the rewards of turns, with their weight in the
    outcome, at the turns' last actions, the rest at the very last action, KL everywhere. `behaviour` are the log-probs
    of the policy that sampled. `bootstrap` `[B]` is the value of the state after the last action: the critic's estimate
    for an episode that was cut off and is rewarded by its turns alone, else 0. Columns that were not requested are
    None: `baselines` `[B]` (a greedy episode's outcome), `values` `[B, T]` (the critic's), `proximal` and `reference`
    log-probs `[B, T]`.
    """

    scores: Doubles
    outcomes: Doubles
    kl: Doubles
    groups: Ints
    lengths: Ints
    mask: NDArray[np.bool_]
    turns: Ints
    rewards: Doubles
    behaviour: Doubles
    bootstrap: Doubles
    baselines: Doubles | None = None
    values: Doubles | None = None
    proximal: Doubles | None = None
    reference: Doubles | None = None

    def flat(self, rows: Doubles) -> Floats:
        """`[B, T]` as the batch's flat `float32 [N]`."""
        return rows[self.mask].astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """`advantages` and the critic's targets `returns`, `float64 [B, T]`; the latter are read only with a critic."""

    advantages: Doubles
    returns: Doubles


def episodes_of(
    batch: Batch, *, overlong: OverlongConfig, max_tokens: int, kl_in_reward: float = 0.0, estimator: KlEstimator = "k1"
) -> Episodes:
    """Return the episodes of a batch that has rewards, with the columns that the ranks computed.
    `kl_in_reward` is the price of a nat of KL to the reference, by `estimator` (arXiv 1909.08593)."""
    given = batch.rewards
    assert given is not None
    lengths = np.diff(batch.offsets)
    columns_of_tokens = np.arange(max(lengths, default=0))
    mask = columns_of_tokens < lengths[:, None]
    scores = given.outcomes + overlong_penalty(lengths, overlong, max_tokens)
    computed = {"proximal": batch.proximal, "reference": batch.reference, "values": batch.values}
    rows = {name: _rows(column, mask) for name, column in computed.items() if column is not None}
    kl = kl_estimate(rows["proximal"] - rows["reference"], estimator) if kl_in_reward else np.zeros(mask.shape)
    rest = scores - _sums(given.turn_rewards, lengths)
    at_end = np.where(columns_of_tokens == lengths[:, None] - 1, rest[:, None], 0.0)
    # What judges an episode as a whole is paid at its end, cut off or not, and nothing is left to come: with the value
    # behind the cut it would be paid twice, and teach never to stop. It makes no difference whether a turn was paid.
    bootstrap = np.where(given.bootstrapped, 0.0 if batch.last_values is None else batch.last_values, 0.0)
    return Episodes(
        scores=scores,
        outcomes=scores - kl_in_reward * kl.sum(1),
        kl=kl_in_reward * kl,
        groups=given.compared,
        lengths=lengths,
        mask=mask,
        turns=_rows(given.turns, mask).astype(np.int64),
        rewards=at_end + _rows(given.turn_rewards, mask) - kl_in_reward * kl,
        behaviour=_rows(batch.behaviour, mask),
        bootstrap=bootstrap.astype(np.float64),
        baselines=given.baselines,
        **rows,
    )


def overlong_penalty(lengths: Ints, overlong: OverlongConfig, max_tokens: int) -> Doubles:
    """Return the length penalty added to the reward of each reply, `[B]` (DAPO, arXiv 2503.14476, equation 13): 0 up to
    `max_tokens` less the buffer, then decreasing linearly to minus the factor at `max_tokens`, and constant beyond."""
    if not overlong.buffer_tokens:
        return np.zeros(lengths.shape)
    into_buffer = lengths.astype(np.float64) - (max_tokens - overlong.buffer_tokens)
    return -overlong.penalty_factor * np.clip(into_buffer / overlong.buffer_tokens, 0.0, 1.0)


def _rows(flat: NDArray[Any], mask: NDArray[np.bool_]) -> Doubles:
    rows = np.zeros(mask.shape)
    rows[mask] = flat
    return rows


def _sums(flat: Doubles, lengths: Ints) -> Doubles:
    """Return the sum over each episode's ACTION tokens, `[B]`, from the first to the last."""
    of = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(of, weights=flat, minlength=len(lengths)).astype(np.float64)
