"""Columns that only the ranks can compute, before the first optimizer step of an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import numpy as np

from rlhf.trainer.arrays import Floats
from rlhf.trainer.batching.batch import Batch, Minibatch, places_of

Column = Literal["proximal", "reference", "values"]
"""A column of a batch. With `values` a rank also answers `last_values` `float32 [S]`, the critic's values behind the
last token of each of its sequences."""


def with_forward_outputs(
    batch: Batch, parts: Sequence[Sequence[Minibatch]], answers: Sequence[Mapping[str, Floats]]
) -> Batch:
    """Return the batch with the columns of every rank's answer, each `float32 [A]` over the rank's ACTION tokens."""
    columns: dict[str, Floats] = {}
    for part, answer in zip(parts, answers, strict=True):
        for name in answer.keys() - {"last_values"}:
            columns.setdefault(name, np.full(batch.tokens, np.nan, np.float32))[places_of(part)] = answer[name]
    last = _last_values(batch, parts, answers) if "values" in columns else None
    return replace(batch, last_values=last, **columns)  # type: ignore[arg-type]


def _last_values(batch: Batch, parts: Sequence[Sequence[Minibatch]], answers: Sequence[Mapping[str, Floats]]) -> Floats:
    """Return the value behind each sample's last sequence, the one that begins last in the batch; 0 for a sample
    without any."""
    last, reached = np.zeros(len(batch.samples), np.float32), np.full(len(batch.samples), -1, np.int64)
    for part, answer in zip(parts, answers, strict=True):
        for (sample, first), value in zip(_sequences(part), answer["last_values"], strict=True):
            if first > reached[sample]:
                last[sample], reached[sample] = value, first
    return last


def _sequences(part: Sequence[Minibatch]) -> Iterator[tuple[int, int]]:
    """Iterate over the sample of every sequence of a rank, and the place of its first ACTION token."""
    for microbatch in chain(*part):
        starts = np.searchsorted(microbatch.sequences, np.arange(len(microbatch.samples)))
        yield from zip(microbatch.samples, microbatch.places[starts], strict=True)
