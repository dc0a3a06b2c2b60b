"""Batches of preference pairs: both replies of a pair stay in one micro-batch. Numpy only and pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf.trainer.arrays import Ints
from rlhf.trainer.batching.batch import Batch, MicroBatch, assemble
from rlhf.types import Segment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairOfSegments:
    """Two replies in one context, `chosen` preferred; their scores should differ by at least `margin`."""

    chosen: Segment
    rejected: Segment
    margin: float = 0.0

    @property
    def tokens(self) -> int:
        """Number of tokens of the longer reply, with its context."""
        return max(len(self.chosen.token_ids), len(self.rejected.token_ids))


def pair_batch(pairs: Sequence[PairOfSegments]) -> Batch:
    """Return a batch in which every pair is a group: sample `2 n` is the chosen reply of pair n, `2 n + 1` the
    rejected one."""
    return assemble(
        [(segment,) for pair in pairs for segment in (pair.chosen, pair.rejected)],
        sample_groups=[n for n in range(len(pairs)) for _ in range(2)],
        samples=[(n, side) for n in range(len(pairs)) for side in range(2)],
        groups=len(pairs),
        aggregation="sequence_mean",
    )


def mismatched(pairs: Sequence[PairOfSegments]) -> list[PairOfSegments]:
    """Every pair's prompt with the replies to the next pair's prompt, truncated to the length of the longest pair."""
    longest = max(pair.tokens for pair in pairs)
    return [
        PairOfSegments(
            chosen=_answering(one.chosen, other.chosen, longest),
            rejected=_answering(one.chosen, other.rejected, longest),
        )
        for one, other in zip(pairs, [*pairs[1:], *pairs[:1]], strict=True)
    ]


def sides(microbatch: MicroBatch) -> tuple[Ints, Ints]:
    """Return the sequences of the chosen and of the rejected replies, in the order of pairs."""
    order = np.argsort(microbatch.samples)
    chosen, rejected = order[::2], order[1::2]
    assert np.array_equal(microbatch.samples[chosen] + 1, microbatch.samples[rejected]), "pairs are computed together"
    return chosen, rejected


def _answering(asked: Segment, answered: Segment, longest: int) -> Segment:
    """Return the prompt of one segment with the reply of another, of at most `longest` tokens."""
    parts = [(asked, ~asked.action_mask), (answered, answered.action_mask)]
    return Segment(
        token_ids=np.concatenate([segment.token_ids[kept] for segment, kept in parts])[:longest],
        kinds=np.concatenate([segment.kinds[kept] for segment, kept in parts])[:longest],
        behaviour_logprobs=np.concatenate([segment.behaviour_logprobs[kept] for segment, kept in parts])[:longest],
        versions=np.concatenate([segment.versions[kept] for segment, kept in parts])[:longest],
        images=tuple(
            replace(placed, start=int(np.count_nonzero(~asked.action_mask[: placed.start]))) for placed in asked.images
        ),
    )
