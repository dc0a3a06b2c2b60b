"""Report of a mismatch between engine and learner: where it occurs, and its possible causes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.arrays import Ints
from rlhf.trainer.batching.batch import Batch
from rlhf.trainer.rank_answers import Disagreement
from rlhf.types import PolicyVersion

LONG = "only long ones: the attention window or the rope scaling of learner and engine differ; compare model.attention"
SOME = "some of any length: rows of several sequences are not computed apart; use another model.attention"
SHOWN = "; all of these have images: the learner may see other pixels than the engine, or at other tokens"
ALL = (
    "all of them: engine and learner have other weights or another temperature, or a LoRA delta was lost in 16 bits "
    "(model.lora.weight_sync=adapter)"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedSequence:
    """One sequence with tokens of the current version: its sample, its `length`, the `wrong` positions, the largest
    deviation of its tokens, and whether it has images."""

    sample: tuple[int, int]
    length: int
    wrong: Ints
    largest: float
    shown: bool


def explain_disagreement(
    batch: Batch, logprobs: NDArray[np.float32], disagreement: Disagreement, version: PolicyVersion
) -> str:
    """One line: how much engine and learner differ, in which episodes, at which positions, at which lengths.

    `logprobs` `[N]` are the learner's, NaN where they were not computed.
    """
    limits = disagreement.limits
    compared = _compared(batch, logprobs, limits.high if disagreement.share > limits.share else limits.mean)
    wrong, right = [each for each in compared if len(each.wrong)], [each for each in compared if not len(each.wrong)]
    worst = max(compared, key=lambda each: each.largest)
    ordinal, sample = worst.sample
    return (
        f"learner and engine give tokens that version {version} sampled other log-probs: by {disagreement.mean:.3g} "
        f"nats on average over {disagreement.tokens} tokens (allowed {limits.mean:.3g}), {disagreement.share:.1%} by "
        f"more than {limits.high:.3g} (allowed {limits.share:.0%}); most, {worst.largest:.3g}, in sample {sample} of "
        f"group {ordinal}, at {_ranges(worst.wrong)} of its {worst.length} tokens. {len(wrong)} sequences of "
        f"{_lengths(wrong)} tokens are off, {len(right)} of {_lengths(right)} are not: "
        f"{_resembles(wrong, right)}{SHOWN if all(each.shown for each in wrong) else ''}; "
        "trainer.mismatch=ignore trains on them all the same"
    )


def _compared(batch: Batch, logprobs: NDArray[np.float32], allowed: float) -> list[ComparedSequence]:
    assert batch.current is not None, "only the current version's tokens are compared"
    gaps = np.where(batch.current > 0, np.abs(logprobs - batch.behaviour_logprobs), np.nan)
    found = []
    for segment, start, sample in zip(batch.sequences, batch.starts, batch.sequence_samples, strict=True):
        actions = np.flatnonzero(segment.action_mask)
        own = gaps[start : start + len(actions)]
        if np.isfinite(own).any():
            found.append(
                ComparedSequence(
                    sample=batch.samples[sample],
                    length=len(segment.token_ids),
                    wrong=actions[own > allowed],
                    largest=float(np.nanmax(own)),
                    shown=bool(segment.images),
                )
            )
    return found


def _resembles(wrong: list[ComparedSequence], right: list[ComparedSequence]) -> str:
    if not right:
        return ALL
    return LONG if min(each.length for each in wrong) > max(each.length for each in right) else SOME


def _lengths(sequences: list[ComparedSequence]) -> str:
    lengths = [sequence.length for sequence in sequences]
    return f"{min(lengths)} to {max(lengths)}" if lengths else "no"


def _ranges(positions: Ints, shown: int = 4) -> str:
    """Format positions as ranges: `positions 4-9, 12`."""
    parts = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    ranges = [f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts if len(part)]
    return "positions " + ", ".join(ranges[:shown]) + (", …" if len(ranges) > shown else "")
