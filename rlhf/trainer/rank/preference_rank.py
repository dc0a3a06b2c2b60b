"""DPO/IPO/KTO training step on one rank: the loss compares the log-probs of a pair's replies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlhf.trainer.answers import RankAnswer
from rlhf.trainer.batching.batch import MicroBatch, Minibatch
from rlhf.trainer.batching.pairs import sides
from rlhf.trainer.config import PreferenceConfig
from rlhf.trainer.losses import LossMetrics
from rlhf.trainer.losses.preference import Pairs, divergence, dpo, implicit_reward, ipo, kto
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.pair_rank import PairRank
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import PairTerms


@dataclass(frozen=True, slots=True, eq=False)
class ReplyLogprobs:
    """Whole replies, each column `float64 [S]`: log-probs under policy and reference summed over the reply's tokens,
    and the number of tokens. Float64, since the loss depends on small differences of sums of hundreds of nats."""

    policy: Tensor
    reference: Tensor
    tokens: Tensor

    def at(self, places: Tensor) -> ReplyLogprobs:
        return ReplyLogprobs(self.policy[places], self.reference[places], self.tokens[places])


class PreferenceRank(PairRank, Rank):
    """One rank's policy, and the frozen reference policy."""

    def diverge(self, minibatches: Sequence[Minibatch]) -> RankAnswer:
        """Return the mean over replies of their log-ratio, policy over reference, without gradient."""
        accumulator = MetricAccumulator()
        for minibatch in minibatches:
            for microbatch in minibatch.microbatches:
                with zero.forward_only(self.engine):
                    replies = self._replies(microbatch)
                accumulator.see(divergence(replies.policy, replies.reference))
        return accumulator.answer()

    def _pair_losses(self, minibatch: Minibatch, terms: PairTerms, accumulator: MetricAccumulator) -> Iterator[Tensor]:
        config = self.settings.trainer.preference
        for microbatch in minibatch.microbatches:
            chosen, rejected = (self._tensor(places) for places in sides(microbatch))
            replies = self._replies(microbatch)
            losses = pair_losses(config, replies.at(chosen), replies.at(rejected), terms.baseline)
            accumulator.see(preference_metrics(config, replies.at(chosen), replies.at(rejected), losses.detach()))
            yield (losses.sum() / (minibatch.samples / 2)).float()

    def _replies(self, microbatch: MicroBatch) -> ReplyLogprobs:
        sequence = self._tensor(microbatch.sequences)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(len(microbatch.samples), dtype=torch.float64).index_add(
                0, sequence, values.double()
            )

        reference = self._scored_by_reference(microbatch)
        logprobs, _ = self._forward(self.engine, microbatch)
        return ReplyLogprobs(summed(logprobs), summed(reference), summed(torch.ones_like(reference)))


def pair_losses(config: PreferenceConfig, chosen: ReplyLogprobs, rejected: ReplyLogprobs, baseline: float) -> Tensor:
    """Return the loss of every pair, `[pairs]`; with `kto`, the mean over its two replies."""
    pairs = Pairs(chosen.policy, rejected.policy, chosen.reference, rejected.reference)
    if config.loss == "dpo":
        return dpo(pairs, config.beta, config.label_smoothing)
    if config.loss == "ipo":
        return ipo(pairs.per_token(chosen.tokens, rejected.tokens), config.beta)
    both = [
        kto(
            side.policy,
            side.reference,
            torch.full_like(side.policy, desirable, dtype=torch.bool),
            side.policy.new_tensor(baseline),
            config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )
        for side, desirable in ((chosen, True), (rejected, False))
    ]
    return (both[0] + both[1]) / 2


def preference_metrics(
    config: PreferenceConfig, chosen: ReplyLogprobs, rejected: ReplyLogprobs, losses: Tensor
) -> LossMetrics:
    """Means over pairs: how often the implicit reward of the chosen reply is higher (a tie counts half), by how much,
    and both rewards. `ipo` compares means per token, and its rewards are per token too."""
    if config.loss == "ipo":
        chosen, rejected = (_by_the_token(side) for side in (chosen, rejected))
    better, worse = (implicit_reward(side.policy, side.reference, config.beta) for side in (chosen, rejected))
    return LossMetrics(
        len(losses),
        {
            "pairs/loss": losses.sum(),
            "pairs/accuracy": torch.sign(better - worse).add(1).div(2).sum(),
            "pairs/margin": (better - worse).sum(),
            "pairs/reward_chosen": better.sum(),
            "pairs/reward_rejected": worse.sum(),
        },
    )


def _by_the_token(replies: ReplyLogprobs) -> ReplyLogprobs:
    return ReplyLogprobs(replies.policy / replies.tokens, replies.reference / replies.tokens, replies.tokens)
