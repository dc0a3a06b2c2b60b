"""Preference pairs on the learner's ranks: batches of pairs, and the learners of reward models and of policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf.trainer.answers import RankAnswer, reduce_metrics
from rlhf.trainer.batching.batch import Batch, Entry, Ints, MicroBatch, Minibatch, assemble
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.settings import PairTerms
from rlhf.types import Segment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairOfSegments:
    """Two replies in one context, `chosen` preferred; their scores should differ by at least `margin`."""

    chosen: Segment
    rejected: Segment
    margin: float = 0.0

    @property
    def tokens(self) -> int:
        """Number of tokens of the longer one, its context included."""
        return max(len(self.chosen.token_ids), len(self.rejected.token_ids))


def pair_batch(pairs: Sequence[PairOfSegments]) -> Batch:
    """A batch in which every pair is a group: sample `2 n` is the chosen reply of pair n, `2 n + 1` the
    rejected one."""
    entries = [
        Entry(segments=(segment,), group=n, identity=(n, side))
        for n, pair in enumerate(pairs)
        for side, segment in enumerate((pair.chosen, pair.rejected))
    ]
    return assemble(entries, groups=len(pairs), aggregation="sequence_mean")


class RewardLearner(RemoteLearner):
    """A learner of reward models: `RemoteLearner` with training on pairs."""

    async def prefer(self, pairs: Sequence[PairOfSegments]) -> dict[str, float]:
        """One optimizer step on the mean loss of these pairs."""
        terms = await self._terms(pairs)
        metrics = await self._on_ranks(lambda worker, part: worker.pairs.prefer(part, terms), pairs)
        self._version += 1
        return metrics

    async def judge(self, pairs: Sequence[PairOfSegments]) -> dict[str, float]:
        """The metrics of the reward model on these pairs, without training."""
        terms = await self._terms(pairs)
        return await self._on_ranks(lambda worker, part: worker.pairs.judge(part, terms), pairs)

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
    `log_ratio` of replies to other prompts; never negative."""
    return max(0.0, strayed["log_ratio"])


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
    """The sequences of the chosen and of the rejected replies, in the order of pairs."""
    order = np.argsort(microbatch.samples)
    chosen, rejected = order[::2], order[1::2]
    assert np.array_equal(microbatch.samples[chosen] + 1, microbatch.samples[rejected]), "pairs are computed together"
    return chosen, rejected


def _answering(asked: Segment, answered: Segment, longest: int) -> Segment:
    """The prompt of one segment with the reply of another, of at most `longest` tokens."""
    parts = [(asked, ~asked.action_mask), (answered, answered.action_mask)]
    return Segment(
        token_ids=np.concatenate([segment.token_ids[kept] for segment, kept in parts])[:longest],
        kinds=np.concatenate([segment.kinds[kept] for segment, kept in parts])[:longest],
        logprobs=np.concatenate([segment.logprobs[kept] for segment, kept in parts])[:longest],
        versions=np.concatenate([segment.versions[kept] for segment, kept in parts])[:longest],
    )
