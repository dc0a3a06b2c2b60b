"""Batches drawn at random: ragged rows, tool replies between actions, a row without actions, groups of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """`[B, T]` arrays of a batch, and `[B]` of its samples."""

    rewards: NDArray[np.float64]
    values: NDArray[np.float64]
    logprobs: NDArray[np.float64]
    behaviour: NDArray[np.float64]
    turns: NDArray[np.int64]
    mask: NDArray[np.int64]
    scores: NDArray[np.float64]
    groups: NDArray[np.int64]
    bootstrap: NDArray[np.float64]


TOKENS = ("rewards", "values", "logprobs", "behaviour")
SAMPLES = ("scores", "groups", "bootstrap")


def batch(seed: int, rows: int = 7, width: int = 11) -> Batch:
    """The last row has no action, the first is full, the others are torn; turns change where the mask does."""
    draw = np.random.default_rng(seed)
    mask = (draw.random((rows, width)) < 0.6).astype(np.int64)
    mask[0], mask[-1] = 1, 0
    columns = {name: draw.normal(size=(rows, width)) for name in TOKENS}
    turns = np.cumsum(np.diff(mask, axis=1, prepend=0) == 1, axis=1)
    groups = draw.integers(0, 3, rows)
    return Batch(
        **columns,
        turns=turns,
        mask=mask,
        scores=draw.integers(0, 3, rows).astype(np.float64),
        groups=groups,
        bootstrap=draw.normal(size=rows),
    )


def garbled(made: Batch) -> Batch:
    """The same batch with NaN and infinity wherever no action is."""
    junk = np.where(np.arange(made.mask.size).reshape(made.mask.shape) % 2, np.nan, np.inf)
    return replace(made, **{name: np.where(made.mask > 0, getattr(made, name), junk) for name in TOKENS})


def rounded(made: Batch) -> Batch:
    """The same batch in single precision."""
    return replace(made, **{name: getattr(made, name).astype(np.float32) for name in (*TOKENS, "scores", "bootstrap")})


def widened_to_double(made: Batch) -> Batch:
    """The same numbers in double precision."""
    return replace(made, **{name: getattr(made, name).astype(np.float64) for name in (*TOKENS, "scores", "bootstrap")})


def permuted(made: Batch, order: NDArray[np.int64]) -> Batch:
    """The same samples in another order."""
    return replace(made, **{name: getattr(made, name)[order] for name in (*TOKENS, "turns", "mask", *SAMPLES)})


def widened(made: Batch, at: int, tokens: int) -> Batch:
    """The same actions with `tokens` of an environment's put in before column `at`."""
    place = np.full(tokens, at)
    changes: dict[str, Any] = {name: np.insert(getattr(made, name), place, 9.0, axis=1) for name in TOKENS}
    changes["turns"] = np.insert(made.turns, place, made.turns[:, [at]], axis=1)
    return replace(made, **changes, mask=np.insert(made.mask, place, 0, axis=1))
