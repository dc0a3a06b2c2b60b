"""Clients of ranks that learn from preference pairs: reward models and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhf.trainer.batching.batch import Minibatch
from rlhf.trainer.batching.pairs import PairOfSegments, mismatched, pair_batch
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank_answers import RankAnswer, reduce_metrics
from rlhf.trainer.settings import PairTerms


class RewardLearner(RemoteLearner):
    """A learner of reward models: `RemoteLearner` with training on pairs."""

    async def prefer(self, pairs: Sequence[PairOfSegments]) -> dict[str, float]:
        """One optimizer step on the mean loss of these pairs."""
        terms = await self._terms(pairs)
        metrics = await self._on_ranks(lambda worker, part: worker.pairs.prefer(part, terms), pairs)
        self._version += 1
        return metrics

    async def evaluate(self, pairs: Sequence[PairOfSegments]) -> dict[str, float]:
        """Return the metrics of the reward model on these pairs, without training."""
        terms = await self._terms(pairs)
        return await self._on_ranks(lambda worker, part: worker.pairs.evaluate(part, terms), pairs)

    async def _terms(self, pairs: Sequence[PairOfSegments]) -> PairTerms:
        return PairTerms(margins=np.array([pair.margin for pair in pairs], np.float32))

    async def _on_ranks(
        self, ask: Callable[[LearnerWorker, Sequence[Minibatch]], RankAnswer], pairs: Sequence[PairOfSegments]
    ) -> dict[str, float]:
        parts = self._cut(pair_batch(pairs), 1, aggregation="sequence_mean", whole_groups=True)
        return reduce_metrics(await self._each(ask, parts, self._seconds))


class PreferenceLearner(RewardLearner):
    """A learner of policies on pairs. KTO's reference point is measured on the whole batch first."""

    async def _terms(self, pairs: Sequence[PairOfSegments]) -> PairTerms:
        terms = await super()._terms(pairs)
        if self._config.preference.loss != "kto":
            return terms
        strayed = await self._on_ranks(lambda worker, part: worker.preferences.diverge(part), mismatched(pairs))
        return replace(terms, baseline=kto_baseline(strayed))


def kto_baseline(strayed: Mapping[str, float]) -> float:
    """KTO's reference point (arXiv 2402.01306): the KL of policy and reference in nats, estimated by the mean
    `pairs/log_ratio` of replies to other prompts; never negative."""
    return max(0.0, strayed["pairs/log_ratio"])
