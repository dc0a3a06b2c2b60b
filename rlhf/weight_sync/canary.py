"""The canary: a few fixed sequences whose log-probs show whether an engine has the learner's weights. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.images import ImageFeatures, PlacedImage
from rlhf.weight_sync.tolerance import EXACT, LogprobTolerance, uniform_tolerance

VERIFY_FACTOR = 4
"""By how much perturbed weights may amplify rounding where the limits are fixed; an engine in which a kind of tensor
stayed behind is off by 1.2 nats and more."""
MOVED_FACTOR = 3
"""Limits by which the learner's canary must have moved before an engine's has to have moved too."""
SEQUENCES, SEQUENCES_IN_16_BITS = 4, 8
"""Few are enough where a single wrong log-prob is a fault; a mean needs more to be precise."""
TOKENS = 12
"""Of a sequence. Rounding grows with the position faster than the effect of a fault: 88 log-probs of short sequences
separate the two where 368 of sequences of 24 tokens hardly do (`benchmarks/canary/`, 48 layers)."""
WHOLE_EVERY = 8
"""One weight sync in this many asks for all sequences, and measures what rounding does to the weights. That changes as
slowly as they do, and no engine is refused by an old measurement."""
FEW = 2
"""Sequences of the other weight syncs, in turn: an engine with other weights differs on any of them, but only the mean
over all may reveal a fault in one layer of many."""
REPLY_TOKENS = 32
"""Number of tokens sampled after the long prompt."""

Scores = NDArray[np.float32] | Sequence[NDArray[np.float32]]
"""Log-probs of every canary sequence, each `float32 [T - 1]`."""


def few(count: int, version: int) -> list[int]:
    """Which of `count` sequences the weight sync of this version asks for, if it does not ask for all."""
    return sorted({(FEW * (version - 1) + place) % count for place in range(FEW)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Canary:
    """Sequences `int32 [T]`, and a prompt that leaves room in the context for `reply_tokens` more, which also tests
    rope scaling and attention windows. `limits` are None where they are measured on the weights, as in 16 bits."""

    sequences: tuple[NDArray[np.int32], ...]
    long_prompt: NDArray[np.int32]
    reply_tokens: int
    limits: LogprobTolerance | None
    images: tuple[PlacedImage, ...] = ()
    """The images that every sequence begins with, of a model that is shown some."""


def canary(
    vocab_size: int,
    context_tokens: int,
    limits: LogprobTolerance | None,
    *,
    seed: int = 0,
    image: ImageFeatures | None = None,
) -> Canary:
    """Sequences of `TOKENS` tokens (fewer where the context is shorter), uniform over the vocabulary: more of them
    where `limits` are to be measured. They follow the `image`, if the context has room for it."""
    rng, count = np.random.default_rng(seed), SEQUENCES if limits else SEQUENCES_IN_16_BITS
    tokens = rng.integers(0, vocab_size, (count, min(TOKENS, context_tokens)), dtype=np.int32)
    images = (PlacedImage(features=image, start=0),) if image else ()
    if image and len(image.token_ids) + TOKENS < context_tokens:
        plain = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), [*image.token_ids, image.mark])
        seen = np.tile(np.array(image.token_ids, np.int32), (count, 1))
        tokens = np.concatenate([seen, plain[tokens % len(plain)]], axis=1)
    else:
        images = ()
    reply = min(REPLY_TOKENS, context_tokens // 2)
    return Canary(
        sequences=tuple(tokens),
        long_prompt=rng.integers(0, vocab_size, context_tokens - reply, dtype=np.int32),
        reply_tokens=reply,
        limits=limits,
        images=images,
    )


def tolerance_for(dtype: str, tolerance: float | None = None) -> LogprobTolerance | None:
    """Return the recipe's `tolerance`, else the fixed one of the precision, else None: to be measured."""
    if tolerance is not None:
        return uniform_tolerance(tolerance)
    return EXACT if dtype == "float32" else None


def difference(one: Scores, other: Scores) -> float:
    """Largest absolute difference, in nats; infinite where a value is NaN or infinite."""
    gaps = _gaps(one, other)
    return float(gaps.max()) if np.isfinite(gaps).all() else float("inf")


def disagreement(engine: Scores, learner: Scores, limits: LogprobTolerance) -> str | None:
    """Return the reason why these cannot be log-probs of the same weights, or None."""
    gaps = _gaps(engine, learner)
    finite = bool(np.isfinite(gaps).all())
    if finite and not limits.refuse(float(gaps.mean()), int((gaps > limits.high).sum()), len(gaps)):
        return None
    return (
        f"its log-probs differ from the learner's by {gaps.max():.3g}, on average {gaps.mean():.3g}; allowed are "
        f"{limits.high:.3g} and {limits.mean:.3g}"
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Start:
    """The canary's log-probs `[R, T - 1]` at the first weight sync of real weights: the engine's and the learner's, by
    the engine's name and the policy's."""

    learner: dict[tuple[str, str], NDArray[np.float32]]
    engines: dict[tuple[str, str], NDArray[np.float32]]


def staleness(
    engine: Scores, engine_start: Scores, learner: Scores, learner_start: Scores, limits: LogprobTolerance
) -> str | None:
    """Return the reason why the engine seems to still serve its initial weights, or None."""
    learner_moved, engine_moved = difference(learner, learner_start), difference(engine, engine_start)
    if learner_moved <= MOVED_FACTOR * limits.high or engine_moved > limits.high:
        return None
    return (
        f"it is stale: since the start the learner's canary log-probs moved by {learner_moved:.3g}, "
        f"its own by {engine_moved:.3g}"
    )


def _gaps(one: Scores, other: Scores) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):
        gaps: NDArray[np.float64] = np.abs(np.concatenate(one).astype(np.float64) - np.concatenate(other))
    return gaps
