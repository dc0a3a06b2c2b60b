"""Base class of ranks that train on pairs of replies, for any model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from torch import Tensor

from rlhf.trainer.answers import RankAnswer
from rlhf.trainer.batching.batch import Minibatch
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.model_rank import ModelRank
from rlhf.trainer.settings import PairTerms


class PairRank(ModelRank):
    """Optimizer steps on pair losses, and the same losses without a step. Batches are those of
    `rlhf.trainer.batching.pairs`: both replies of a pair are in one micro-batch, and share their prompt."""

    def prefer(self, minibatches: Sequence[Minibatch], terms: PairTerms) -> RankAnswer:
        """One optimizer step for every minibatch, on the loss of its pairs."""
        accumulator = MetricAccumulator()
        for minibatch in minibatches:
            self._optimizer_step(
                self._pair_losses(minibatch, terms, accumulator), len(minibatch.microbatches), accumulator
            )
        self._average_weights()
        return accumulator.answer()

    def evaluate(self, minibatches: Sequence[Minibatch], terms: PairTerms) -> RankAnswer:
        """Return the metrics of `prefer` without a step."""
        accumulator = MetricAccumulator()
        for minibatch in minibatches:
            with zero.forward_only(self.engine):
                for _ in self._pair_losses(minibatch, terms, accumulator):
                    pass
        return accumulator.answer()

    @abstractmethod
    def _pair_losses(self, minibatch: Minibatch, terms: PairTerms, accumulator: MetricAccumulator) -> Iterator[Tensor]:
        """Every micro-batch's part of the mean over the step's pairs; what was seen goes into `accumulator`."""
