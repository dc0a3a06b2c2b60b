"""Episodes drawn at random: ragged rows, gaps as of tool replies, a row without actions, groups of one."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf.trainer.credit.episodes import Episodes


def episodes(mask: ArrayLike, **columns: ArrayLike) -> Episodes:
    """Episodes with these columns, which are 0 where `mask` is; the rest are 0 or None. Outcomes are the scores."""
    live = np.asarray(mask) > 0
    rows, tokens = np.zeros(len(live)), np.zeros(live.shape)
    given = {name: np.asarray(column, np.float64) for name, column in columns.items()}
    cut = {name: column if column.ndim == 1 else np.where(live, column, 0.0) for name, column in given.items()}
    scores = cut.get("scores", rows)
    made: dict[str, Any] = {"scores": scores, "outcomes": scores, "bootstrap": rows, "groups": rows}
    made |= dict.fromkeys(("kl", "turns", "rewards", "behaviour"), tokens)
    return Episodes(mask=live, lengths=live.sum(1), **(made | cut))


def scored(scores: ArrayLike, lengths: ArrayLike = 1, groups: ArrayLike = 0) -> Episodes:
    """Episodes of one group with these scores, or of `groups`."""
    given = np.asarray(scores, np.float64)
    lengths, groups = np.broadcast_to(lengths, given.shape), np.broadcast_to(groups, given.shape)
    return episodes(np.arange(lengths.max()) < lengths[:, None], scores=given, groups=groups)


def at_last_action(scores: ArrayLike, mask: ArrayLike) -> NDArray[np.float64]:
    """Token rewards `[B, T]`: the score at a row's last action."""
    live = np.asarray(mask) > 0
    is_last = live & (np.cumsum(live[:, ::-1], axis=1)[:, ::-1] == 1)
    return np.where(is_last, np.asarray(scores, np.float64)[:, None], 0.0)


def drawn(seed: int, rows: int = 7, width: int = 11) -> Episodes:
    """The last row has no action, the first is full, the others are torn; turns change where the mask does."""
    draw = np.random.default_rng(seed)
    mask = draw.random((rows, width)) < 0.6
    mask[0], mask[-1] = True, False
    columns = {name: draw.normal(size=(rows, width)) for name in ("rewards", "values", "proximal", "behaviour")}
    turns = np.cumsum(np.diff(mask.astype(int), axis=1, prepend=0) == 1, axis=1)
    groups, scores = draw.integers(0, 3, rows), draw.integers(0, 3, rows)
    bootstrap, baselines = draw.normal(size=rows), draw.normal(size=rows)
    return episodes(
        mask, **columns, turns=turns, scores=scores, groups=groups, bootstrap=bootstrap, baselines=baselines
    )


def permuted(made: Episodes, order: NDArray[np.int64]) -> Episodes:
    """The same episodes in another order."""
    return replace(made, **{name: column[order] for name, column in _columns(made).items()})


def widened(made: Episodes, at: int, tokens: int) -> Episodes:
    """The same actions with `tokens` of an environment's put in before column `at`."""
    place = np.full(tokens, at)
    wide = {name: np.insert(rows, place, 0, axis=1) for name, rows in _columns(made).items() if rows.ndim == 2}
    return replace(made, **wide)


def _columns(made: Episodes) -> dict[str, NDArray[Any]]:
    return {field.name: column for field in fields(made) if (column := getattr(made, field.name)) is not None}
