"""Outputs of the ranks' forward passes over a batch, before its first optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.batching.batch import Batch, Minibatch, microbatches_of, places_of

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRequest:
    """Which of `ForwardOutputs` to compute."""

    proximal: bool = False
    reference: bool = False
    values: bool = False

    @property
    def anything(self) -> bool:
        return self.proximal or self.reference or self.values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardOutputs:
    """Over ACTION tokens, `float32 [N]` of the batch or `[A]` of a rank: log-probs of the `proximal` policy (the
    learner's weights before the update) and of the `reference`, and the critic's `values` before each token.
    `last_values` are its values behind the last token of every episode, `[B]`, or of a rank's every sequence, `[S]`.
    None where nobody asked."""

    proximal: Floats | None = None
    reference: Floats | None = None
    values: Floats | None = None
    last_values: Floats | None = None

    def columns(self) -> Iterator[tuple[str, Floats]]:
        """The per-token ones that were asked for, by name."""
        named = (("proximal", self.proximal), ("reference", self.reference), ("values", self.values))
        return ((name, column) for name, column in named if column is not None)


def gather_forward_outputs(
    batch: Batch, parts: Sequence[Sequence[Minibatch]], answers: Sequence[ForwardOutputs]
) -> ForwardOutputs:
    """Of every rank's part its answer, in the order of the batch."""
    columns: dict[str, Floats] = {}
    for part, answer in zip(parts, answers, strict=True):
        for name, values in answer.columns():
            columns.setdefault(name, np.full(batch.tokens, np.nan, np.float32))[places_of(part)] = values
    asked = any(answer.last_values is not None for answer in answers)
    return ForwardOutputs(**columns, last_values=_last_values(batch, parts, answers) if asked else None)


def _last_values(batch: Batch, parts: Sequence[Sequence[Minibatch]], answers: Sequence[ForwardOutputs]) -> Floats:
    """Of each sample the value behind its last sequence, the one that begins last in the batch; 0 of one without
    any."""
    last, reached = np.zeros(len(batch.samples), np.float32), np.full(len(batch.samples), -1, np.int64)
    for part, answer in zip(parts, answers, strict=True):
        assert answer.last_values is not None
        for (sample, first), value in zip(_sequences(part), answer.last_values, strict=True):
            if first > reached[sample]:
                last[sample], reached[sample] = value, first
    return last


def _sequences(part: Sequence[Minibatch]) -> Iterator[tuple[int, int]]:
    """The sample of every sequence of a rank, and the place of its first ACTION token."""
    for microbatch in microbatches_of(part):
        starts = np.searchsorted(microbatch.sequences, np.arange(len(microbatch.samples)))
        yield from zip(microbatch.samples, microbatch.places[starts], strict=True)
