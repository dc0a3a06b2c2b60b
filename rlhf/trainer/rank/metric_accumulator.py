"""Accumulate the metrics of a rank's micro-batches, as tensors until the end, so that nothing waits for the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf.trainer.losses import LossMetrics
from rlhf.trainer.rank_answers import Disagreement, RankAnswer


class MetricAccumulator:
    """Call `see` with every micro-batch's metrics, `keep` with the log-probs and entropies of the first pass, then
    `answer`. A `disagreement` ends the update."""

    def __init__(self) -> None:
        self.disagreement: Disagreement | None = None
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, float] = {}
        self._maxima: dict[str, Tensor] = {}
        self._steps: dict[str, list[float]] = {}
        self._places: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._logprobs: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def see(self, metrics: LossMetrics) -> None:
        for name, value in metrics.sums.items():
            self.add(name, value, metrics.count)
        for name, value in metrics.maxima.items():
            self._maxima[name] = torch.maximum(self._maxima.get(name, value), value)

    def add(self, name: str, total: Tensor, count: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + total.double()
        self._counts[name] = self._counts.get(name, 0) + count

    def step(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._steps.setdefault(name, []).append(value)

    def keep(self, places: np.ndarray, logprobs: Tensor, entropies: Tensor) -> None:
        self._places.append(places)
        self._logprobs.append(logprobs.detach())
        self._entropies.append(entropies.detach())

    def answer(self) -> RankAnswer:
        return RankAnswer(
            sums={name: (float(value), float(self._counts[name])) for name, value in self._sums.items()},
            maxima={name: float(value) for name, value in self._maxima.items()},
            steps={name: tuple(values) for name, values in self._steps.items()},
            places=np.concatenate(self._places),
            proximal_logprobs=_joined(self._logprobs),
            entropies=_joined(self._entropies),
            disagreement=self.disagreement,
        )


def _joined(columns: list[Tensor]) -> NDArray[np.float32]:
    return torch.cat(columns).float().cpu().numpy() if columns else np.zeros(0, np.float32)
