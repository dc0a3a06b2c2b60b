"""Which tokens of an episode the loss clipped or corrected, from its log-probs and the recipe.

They are those of the episode's first optimizer step, whose log-probs are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLIPPING = ("ppo", "cispo")
"""Losses that clip the ratio of a token."""


def token_marks(episode: Mapping[str, Any], trainer: Mapping[str, Any]) -> list[str | None] | None:
    """Return for each token `clipped`, `truncated`, `masked` or None; None for an episode that was not trained.
    `trainer` is that part of its recipe."""
    if episode["proximal_logprobs"] is None or episode["behaviour_logprobs"] is None:
        return None
    log_ratio = _floats(episode["proximal_logprobs"]) - _floats(episode["behaviour_logprobs"])
    marks = np.full(len(log_ratio), None, object)
    if "recomputed" in (trainer.get("proximal_logprobs"), trainer.get("old_logprobs")):  # the name in earlier recipes
        correction = trainer["correction"]
        weight = np.exp(_at_level(log_ratio, correction["level"], episode["segment_lengths"]))
        if correction["method"] == "truncate":
            marks[weight > correction["high"]] = "truncated"
        elif correction["method"] == "mask":
            marks[(weight > correction["high"]) | (weight < correction["low"])] = "masked"
    elif (loss := trainer["loss"])["policy"] in CLIPPING:
        own = episode["advantages"]
        advantages = _floats(own) if own is not None else np.full(len(log_ratio), episode["advantage"] or 0.0)
        above, below = np.exp(log_ratio) > 1 + loss["clip_high"], np.exp(log_ratio) < 1 - loss["clip_low"]
        if loss["policy"] == "ppo":  # it clips only what would extend beyond
            above, below = above & (advantages > 0), below & (advantages < 0)
        marks[above | below] = "clipped"
    found: list[str | None] = marks.tolist()
    return found


def _at_level(log_ratio: NDArray[np.float64], level: str, lengths: Sequence[int]) -> NDArray[np.float64]:
    """Return the log-ratio of each token, or the sum or mean over the sampled tokens of its segment."""
    if level == "token":
        return log_ratio
    combined = np.nansum if level == "sequence" else np.nanmean
    segments = np.split(log_ratio, np.cumsum(lengths)[:-1])
    return np.concatenate([np.where(np.isnan(part), np.nan, combined(part)) for part in segments if len(part)])


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
