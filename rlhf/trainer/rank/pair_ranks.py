"""Training on pairs of replies on one rank: DPO, IPO and KTO steps of a policy, and steps of a reward model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from rlhf.models.scalar import is_scalar
from rlhf.trainer.batching.batch import MicroBatch, Minibatch
from rlhf.trainer.batching.pairs import sides
from rlhf.trainer.config import PreferenceConfig
from rlhf.trainer.losses import LossMetrics
from rlhf.trainer.losses.preference import ScoredPairs, bradley_terry, divergence, dpo, implicit_reward, ipo, kto
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.critic import load_scalar_head
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.model_rank import ModelRank
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.rank_answers import RankAnswer
from rlhf.trainer.settings import LearnerSettings, PairTerms


class PairRank(ModelRank):
    """Optimizer steps on pair losses, and the same losses without a step. Batches are those of
    `rlhf.trainer.batching.pairs`: both replies of a pair are in one micro-batch, and share their prompt."""

    def prefer(self, minibatches: Sequence[Minibatch], terms: PairTerms) -> RankAnswer:
        """One optimizer step for every minibatch, on the loss of its pairs."""
        accumulator = MetricAccumulator()
        for minibatch in minibatches:
            total = torch.zeros((), device=self.device)
            for microbatch in minibatch:
                losses = self._pair_losses(microbatch, terms, accumulator)
                loss = (losses.sum() / (microbatch.step_samples / 2)).float()
                last = microbatch is minibatch[-1]
                total = total + zero.backward(self.engine, loss, self.world_size, last=last)
            self._step(total, accumulator)
        self._end_update()
        return accumulator.answer()

    def evaluate(self, minibatches: Sequence[Minibatch], terms: PairTerms) -> RankAnswer:
        """Return the metrics of `prefer` without a step."""
        accumulator = MetricAccumulator()
        with zero.forward_only(self.engine):
            for microbatch in chain(*minibatches):
                self._pair_losses(microbatch, terms, accumulator)
        return accumulator.answer()

    @abstractmethod
    def _pair_losses(self, microbatch: MicroBatch, terms: PairTerms, accumulator: MetricAccumulator) -> Tensor:
        """Return the loss of every pair, `[pairs]`; what was seen goes into `accumulator`."""


class PreferenceRank(PairRank, Rank):
    """One rank's policy, and the frozen reference policy."""

    def diverge(self, minibatches: Sequence[Minibatch]) -> RankAnswer:
        """Return the mean over replies of their log-ratio, policy over reference, without gradient."""
        accumulator = MetricAccumulator()
        with zero.forward_only(self.engine):
            for microbatch in chain(*minibatches):
                policy, reference, _ = self._replies(microbatch)
                accumulator.see(divergence(policy, reference))
        return accumulator.answer()

    def _pair_losses(self, microbatch: MicroBatch, terms: PairTerms, accumulator: MetricAccumulator) -> Tensor:
        config = self.settings.trainer.preference
        policy, reference, tokens = self._replies(microbatch)
        chosen, rejected = (self._tensor(places) for places in sides(microbatch))
        pairs = ScoredPairs(policy[chosen], policy[rejected], reference[chosen], reference[rejected])
        if config.loss == "ipo":  # its rewards are per token too
            pairs = pairs.per_token(tokens[chosen], tokens[rejected])
        losses = pair_losses(config, pairs, terms.baseline)
        accumulator.see(preference_metrics(config, pairs, losses.detach()))
        return losses

    def _replies(self, microbatch: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probs under policy and reference, summed over the tokens of each reply, and the number of tokens,
        all `float64 [S]`: the loss depends on small differences of sums of hundreds of nats."""
        sequence = self._tensor(microbatch.sequences)

        def summed(values: Tensor) -> Tensor:
            return values.new_zeros(len(microbatch.samples), dtype=torch.float64).index_add(
                0, sequence, values.double()
            )

        reference = self._scored_by_reference(microbatch)
        logprobs, _ = self._forward(self.engine, microbatch)
        return summed(logprobs), summed(reference), summed(torch.ones_like(reference))


def pair_losses(config: PreferenceConfig, pairs: ScoredPairs, baseline: float) -> Tensor:
    """Return the loss of every pair, `[pairs]`; with `kto`, the mean over its two replies."""
    if config.loss == "dpo":
        return dpo(pairs, config.beta, config.label_smoothing)
    if config.loss == "ipo":
        return ipo(pairs, config.beta)
    both = [
        kto(
            logprobs,
            reference,
            torch.full_like(logprobs, desirable, dtype=torch.bool),
            logprobs.new_tensor(baseline),
            config.beta,
            desirable_weight=config.desirable_weight,
            undesirable_weight=config.undesirable_weight,
        )
        for logprobs, reference, desirable in (
            (pairs.chosen, pairs.reference_chosen, True),
            (pairs.rejected, pairs.reference_rejected, False),
        )
    ]
    return (both[0] + both[1]) / 2


def preference_metrics(config: PreferenceConfig, pairs: ScoredPairs, losses: Tensor) -> LossMetrics:
    """Means over pairs: how often the implicit reward of the chosen reply is higher (a tie counts half), by how much,
    and both rewards."""
    better = implicit_reward(pairs.chosen, pairs.reference_chosen, config.beta)
    worse = implicit_reward(pairs.rejected, pairs.reference_rejected, config.beta)
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


class RewardRank(PairRank):
    """One rank's reward model: an existing one is trained further, any other language model gets a head of zeros."""

    def __init__(self, rank: int, world_size: int, settings: LearnerSettings) -> None:
        fresh = not is_scalar(settings.model_path, trust_remote_code=settings.model.trust_remote_code)
        model = load_scalar_head(settings.model_path, settings, world_size, fresh_head=fresh, setting="model.path")
        super().__init__(model, rank, world_size, settings)

    def _pair_losses(self, microbatch: MicroBatch, terms: PairTerms, accumulator: MetricAccumulator) -> Tensor:
        places, scores = sides(microbatch), self._scores(microbatch)
        chosen, rejected = (scores[self._tensor(side)] for side in places)
        margins = self._tensor(terms.margins[microbatch.samples[places[0]] // 2])
        losses = bradley_terry(chosen, rejected, margins, self.settings.trainer.reward_model.center_rewards_coefficient)
        accumulator.see(ranking_metrics(chosen.detach(), rejected.detach(), losses.detach()))
        return losses

    def _scores(self, microbatch: MicroBatch) -> Tensor:
        """Return the score of every sequence, at its last token, `[S]`."""
        scores: Tensor = self.engine(
            self._tensor(microbatch.token_ids).long(),
            self._tensor(microbatch.position_ids).long(),
            self._tensor(microbatch.ends),
            images=microbatch.images,
        )
        return scores


def ranking_metrics(chosen: Tensor, rejected: Tensor, losses: Tensor) -> LossMetrics:
    """Means over pairs: how often the chosen reply scores higher (a tie counts half), by how much, and the scores
    themselves."""
    right = torch.sign(chosen - rejected).add(1).div(2)
    return LossMetrics(
        len(losses),
        {
            "pairs/loss": losses.sum(),
            "pairs/accuracy": right.sum(),
            "pairs/score_difference": (chosen - rejected).sum(),
            "pairs/score": (chosen + rejected).div(2).sum(),
        },
    )
