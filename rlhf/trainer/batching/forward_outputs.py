"""Columns that only the ranks can compute, before the first optimizer step of an update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import numpy as np

from rlhf.trainer.arrays import Floats
from rlhf.trainer.batching.batch import Batch, Minibatch, places_of

Column = Literal["proximal_logprobs", "reference_logprobs", "values"]
"""A column of a batch. With `values` a rank also returns `last_values` `float32 [S]`, the critic's values after the
last token of each of its sequences."""


def with_forward_outputs(
    batch: Batch, parts: Sequence[Sequence[Minibatch]], answers: Sequence[Mapping[str, Floats]]
) -> Batch:
    """Return the batch with the columns of every rank's answer, each `float32 [A]` over the rank's ACTION tokens."""
    columns: dict[str, Floats] = {}
    for part, answer in zip(parts, answers, strict=True):
        for name in answer.keys() - {"last_values"}:
            columns.setdefault(name, np.full(batch.tokens, np.nan, np.float32))[places_of(part)] = answer[name]
    last = None
    if "values" in columns:
        micros = [micro for part in parts for micro in chain(*part)]
        firsts = np.concatenate([micro.places[np.unique(micro.sequences, return_index=True)[1]] for micro in micros])
        order = np.argsort(firsts)  # a sample's last value is that after its last sequence; 0 without any
        last = np.zeros(len(batch.samples), np.float32)
        samples = np.concatenate([micro.samples for micro in micros])
        last[samples[order]] = np.concatenate([answer["last_values"] for answer in answers])[order]
    return replace(batch, last_values=last, **columns)  # type: ignore[arg-type]
