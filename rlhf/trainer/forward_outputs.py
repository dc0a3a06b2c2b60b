"""Outputs of the ranks' forward passes over a batch, before its first optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.trainer.batch import MicroBatch

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


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
    """Over the batch's ACTION tokens, `float32 [N]`: log-probs of the `proximal` policy (the learner's weights before
    the update) and of the `reference`, and the critic's `values` before each token. `last_values` `[B]` are its values
    after the last token of every episode. None where they were not requested."""

    proximal: Floats | None = None
    reference: Floats | None = None
    values: Floats | None = None
    last_values: Floats | None = None

    def named(self) -> Iterator[tuple[str, Floats | None]]:
        """The per-token columns by name."""
        yield from (("proximal", self.proximal), ("reference", self.reference), ("values", self.values))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankForwardOutputs:
    """One rank's part of `ForwardOutputs`: `columns` over its ACTION tokens, which have the indices `places` `[A]`
    in the batch, and `last_values` over its sequences `[S]`, which belong to `samples` and start at the indices
    `firsts`."""

    places: Ints
    samples: Ints
    firsts: Ints
    columns: Mapping[str, Floats]
    last_values: Floats | None


class Columns:
    """Collects a rank's outputs micro-batch by micro-batch, as tensors until the end, so that nothing waits for the
    GPU."""

    def __init__(self) -> None:
        empty = np.zeros(0, np.int64)
        self._places, self._samples, self._firsts = [empty], [empty], [empty]
        self._kept: dict[str, list[Any]] = {}

    def begin(self, microbatch: MicroBatch) -> None:
        """Start a micro-batch: the following calls of `keep` belong to it."""
        self._places.append(microbatch.places)
        self._samples.append(microbatch.samples)
        starts = np.searchsorted(microbatch.sequences, np.arange(len(microbatch.samples)))
        self._firsts.append(microbatch.places[starts])

    def keep(self, name: str, values: Any) -> None:
        """Store a tensor over the micro-batch's ACTION tokens, or over its sequences."""
        self._kept.setdefault(name, []).append(values)

    def answer(self) -> RankForwardOutputs:
        columns = {
            name: np.concatenate([part.float().cpu().numpy() for part in parts]) for name, parts in self._kept.items()
        }
        last_values = columns.pop("last_values", None)
        return RankForwardOutputs(
            places=np.concatenate(self._places),
            samples=np.concatenate(self._samples),
            firsts=np.concatenate(self._firsts),
            columns=columns,
            last_values=last_values,
        )


def gather_forward_outputs(answers: Sequence[RankForwardOutputs], tokens: int, samples: int) -> ForwardOutputs:
    """All ranks' outputs in the order of the batch with `tokens` ACTION tokens and `samples` samples."""
    columns: dict[str, Floats] = {}
    for answer in answers:
        for name, values in answer.columns.items():
            columns.setdefault(name, np.full(tokens, np.nan, np.float32))[answer.places] = values
    asked = any(answer.last_values is not None for answer in answers)
    return ForwardOutputs(**columns, last_values=_last_values(answers, samples) if asked else None)


def _last_values(answers: Sequence[RankForwardOutputs], samples: int) -> Floats:
    """Of each sample the value behind its last sequence, the one that begins last in the batch; 0 of one without
    any."""
    last, reached = np.zeros(samples, np.float32), np.full(samples, -1, np.int64)
    for answer in answers:
        assert answer.last_values is not None, "ranks answer alike"
        for sample, first, value in zip(answer.samples, answer.firsts, answer.last_values, strict=True):
            if first > reached[sample]:
                last[sample], reached[sample] = value, first
    return last
