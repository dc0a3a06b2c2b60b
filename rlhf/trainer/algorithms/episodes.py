"""The view of a batch for estimators: one episode per row, `[B, T]` over its ACTION tokens. Numpy only and pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.advantages import kl_estimate, kl_penalised, outcome_rewards, overlong_penalty
from rlhf.trainer.arrays import Doubles, Ints
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.config import KlEstimator, OverlongConfig


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Episodes:
    """The trainable episodes of a batch, in its order.

    `scores` `[B]` include the length penalty; `outcomes` `[B]` are the scores minus, where KL is in the reward, the sum
    of `kl` `[B, T]`, each token's KL to the reference times its price.
    `groups` `[B]` is the comparison group of each: the same role in the same group. `lengths` `[B]` are its ACTION
    tokens; `mask` `[B, T]` is true on them and `turns` `[B, T]` numbers their turns. `rewards` `[B, T]` are per token,
    and sum to the outcome: the rewards of turns, with their weight in the outcome, at the turns' last actions, the rest
    at the very last action, KL everywhere. Columns that were not requested are None: `baselines` `[B]` (a greedy
    episode's outcome), `values` `[B, T]` and `bootstrap` `[B]` (the critic), `behaviour`, `proximal` and `reference`
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
    baselines: Doubles | None = None
    values: Doubles | None = None
    bootstrap: Doubles | None = None
    proximal: Doubles | None = None
    reference: Doubles | None = None

    def flat(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """`[B, T]` as the batch's flat `float32 [N]`."""
        return rows[self.mask].astype(np.float32)


def episodes_of(
    batch: Batch, *, overlong: OverlongConfig, max_tokens: int, kl_in_reward: float = 0.0, estimator: KlEstimator = "k1"
) -> Episodes:
    """Return the episodes of a batch that has rewards, with the columns that the ranks computed.
    `kl_in_reward` is the price of a nat of KL to the reference, by `estimator`."""
    given = batch.rewards
    assert given is not None
    lengths = np.diff(batch.offsets)
    mask = np.arange(max(lengths, default=0)) < lengths[:, None]
    scores = given.outcomes + overlong_penalty_of(lengths, overlong, max_tokens)
    columns = batch.per_token
    computed = {"proximal": columns.proximal, "reference": columns.reference, "values": columns.values}
    rows = {name: _rows(column, mask) for name, column in computed.items() if column is not None}
    kl = kl_estimate(rows["proximal"] - rows["reference"], estimator) if kl_in_reward else np.zeros(mask.shape)
    turn_rewards, paid = _rows(given.turn_rewards, mask), _sums(given.turn_rewards, lengths)
    return Episodes(
        scores=scores,
        outcomes=scores - kl_in_reward * kl.sum(1),
        kl=kl_in_reward * kl,
        groups=given.compared,
        lengths=lengths,
        mask=mask,
        turns=_rows(given.turns, mask).astype(np.int64),
        rewards=kl_penalised(outcome_rewards(scores - paid, mask) + turn_rewards, kl, mask, coefficient=kl_in_reward),
        behaviour=_rows(columns.behaviour, mask),
        baselines=given.baselines,
        bootstrap=_bootstrap(batch.last_values, given.bootstrapped),
        **rows,
    )


def overlong_penalty_of(lengths: Ints, overlong: OverlongConfig, max_tokens: int) -> Doubles:
    """Return the length penalty of each reply, `[B]`; zeros where shaping is off."""
    if not overlong.buffer_tokens:
        return np.zeros(lengths.shape)
    return overlong_penalty(
        lengths, max_tokens=max_tokens, buffer_tokens=overlong.buffer_tokens, factor=overlong.penalty_factor
    )


def _rows(flat: NDArray[Any], mask: NDArray[np.bool_]) -> Doubles:
    rows = np.zeros(mask.shape)
    rows[mask] = flat
    return rows


def _sums(flat: Doubles, lengths: Ints) -> Doubles:
    """Return the sum over each episode's ACTION tokens, `[B]`, from the first to the last."""
    of = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(of, weights=flat, minlength=len(lengths)).astype(np.float64)


def _bootstrap(last_values: NDArray[np.float32] | None, bootstrapped: NDArray[np.bool_]) -> Doubles | None:
    """Return the critic's value behind the last token of episodes that were cut off and are rewarded by their turns
    alone, whether or not a turn was given any so far; 0 behind all others. What judges an episode as a whole is paid at
    its end, cut off or not, and nothing is left to come: paid twice it would teach never to stop."""
    if last_values is None:
        return None
    return np.where(bootstrapped, last_values, 0.0).astype(np.float64)
