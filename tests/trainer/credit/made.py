"""Batches drawn at random: samples of any length, one without actions, groups of one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf.trainer.batching.batch import Batch


def made_of(mask: ArrayLike, **columns: ArrayLike) -> Batch:
    """A sample of each row, of the actions where `mask` is; columns are `[B]` or `[B, T]`, the rest 0 or None. Outcomes
    are the scores."""
    live = np.asarray(mask) > 0
    rows, tokens, count = np.zeros(len(live)), np.zeros(live.sum()), len(live)
    given = {name: np.asarray(column, np.float64) for name, column in columns.items()}
    flat: dict[str, Any] = {name: column if column.ndim == 1 else column[live] for name, column in given.items()}
    flat["turns"] = flat.get("turns", tokens).astype(np.int64)
    scores = flat.get("scores", rows)
    made = {"scores": scores, "outcomes": scores, "groups": rows, "last_values": flat.pop("bootstrap", rows)}
    made |= {"bootstrapped": rows == 0, **dict.fromkeys(("kl", "rewards", "behaviour_logprobs", "advantages"), tokens)}
    return Batch(
        sequences=(),
        starts=np.zeros(0, np.int64),
        sequence_samples=np.zeros(0, np.int64),
        sample_groups=np.zeros(count, np.int64),
        samples=tuple((0, n) for n in range(count)),
        offsets=np.concatenate([[0], np.cumsum(live.sum(1))]),
        group_count=1,
        loss_weights=tokens + 1,
        **(made | flat),
    )


def spread(flat: NDArray[np.float64], mask: ArrayLike) -> NDArray[np.float64]:
    """The flat answer `[N]` where `mask` is, `[B, T]`, else 0."""
    rows = np.zeros(np.shape(mask))
    rows[np.asarray(mask) > 0] = flat
    return rows


def scored(scores: ArrayLike, lengths: ArrayLike = 1, groups: ArrayLike = 0) -> Batch:
    """Samples of one group with these scores, or of `groups`."""
    given = np.asarray(scores, np.float64)
    lengths, groups = np.broadcast_to(lengths, given.shape), np.broadcast_to(groups, given.shape)
    return made_of(np.arange(lengths.max()) < lengths[:, None], scores=given, groups=groups)


def at_last_action(scores: ArrayLike, mask: ArrayLike) -> NDArray[np.float64]:
    """Token rewards `[B, T]`: the score at a row's last action."""
    live = np.asarray(mask) > 0
    is_last = live & (np.cumsum(live[:, ::-1], axis=1)[:, ::-1] == 1)
    return np.where(is_last, np.asarray(scores, np.float64)[:, None], 0.0)


def drawn(seed: int, rows: int = 7, width: int = 11) -> Batch:
    """The last sample has no action, the first is full, the others have some."""
    draw = np.random.default_rng(seed)
    mask = draw.random((rows, width)) < 0.6
    mask[0], mask[-1] = True, False
    names = ("rewards", "values", "proximal_logprobs", "behaviour_logprobs")
    columns = {name: draw.normal(size=(rows, width)) for name in names}
    turns = np.cumsum(np.diff(mask.astype(int), axis=1, prepend=0) == 1, axis=1)
    groups, scores = draw.integers(0, 3, rows), draw.integers(0, 3, rows)
    bootstrap, baselines = draw.normal(size=rows), draw.normal(size=rows)
    return made_of(mask, **columns, turns=turns, scores=scores, groups=groups, bootstrap=bootstrap, baselines=baselines)


def permuted(made: Batch, order: NDArray[np.int64]) -> Batch:
    """The same samples in another order."""
    changed: dict[str, Any] = {"offsets": np.concatenate([[0], np.cumsum(made.lengths[order])])}
    for field in fields(made):
        column = getattr(made, field.name)
        if field.name in PER_SAMPLE and column is not None:
            changed[field.name] = column[order]
        elif field.name in PER_TOKEN and column is not None:
            changed[field.name] = reordered(made, column, order)
    return replace(made, **changed)


def reordered(made: Batch, flat: NDArray[np.float64], order: NDArray[np.int64]) -> NDArray[np.float64]:
    """A flat column with its samples in this order."""
    parts = made.per_sample(flat)
    return np.concatenate([parts[n] for n in order])


PER_SAMPLE = ("scores", "outcomes", "groups", "baselines", "last_values", "bootstrapped")
PER_TOKEN = (
    "kl",
    "turns",
    "rewards",
    "behaviour_logprobs",
    "advantages",
    "loss_weights",
    "values",
    "proximal_logprobs",
)
