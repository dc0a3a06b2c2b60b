"""Reward-model training step on one rank: the loss compares the scores of a pair's replies."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rlhf.models.probe import check_packed_forward
from rlhf.models.scalar import is_scalar, load_scalar
from rlhf.trainer.batching.batch import MicroBatch, Minibatch
from rlhf.trainer.batching.pairs import sides
from rlhf.trainer.losses import LossMetrics
from rlhf.trainer.losses.preference import bradley_terry
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.pair_rank import PairRank
from rlhf.trainer.rank.sequence_parallel import as_scalar_head
from rlhf.trainer.rank.sharding import module_by_module
from rlhf.trainer.settings import LearnerSettings, PairTerms


class RewardRank(PairRank):
    """One rank's reward model: an existing one is trained further, any other language model gets a head of zeros."""

    def __init__(self, rank: int, world_size: int, settings: LearnerSettings) -> None:
        model = settings.model
        loaded = load_scalar(
            settings.model_path,
            dtype=model.dtype,
            attention=model.attention,
            gradient_checkpointing=model.gradient_checkpointing,
            offload_activations=model.offload_activations,
            trust_remote_code=model.trust_remote_code,
            fresh_head=not is_scalar(settings.model_path, trust_remote_code=model.trust_remote_code),
            sharding=zero.sharding(settings, world_size),
        )
        with module_by_module(loaded):
            check_packed_forward(loaded, settings.model_path, device=settings.device)
        super().__init__(as_scalar_head(loaded, settings), rank, world_size, settings)

    def _pair_losses(self, minibatch: Minibatch, terms: PairTerms, accumulator: MetricAccumulator) -> Iterator[Tensor]:
        for microbatch in minibatch.microbatches:
            places = sides(microbatch)
            scores = self._scores(microbatch)
            chosen, rejected = (scores[self._tensor(side)] for side in places)
            margins = self._tensor(terms.margins[microbatch.samples[places[0]] // 2])
            losses = bradley_terry(
                chosen, rejected, margins, self.settings.trainer.reward_model.center_rewards_coefficient
            )
            accumulator.see(ranking_metrics(chosen.detach(), rejected.detach(), losses.detach()))
            yield losses.sum() / (minibatch.samples / 2)

    def _scores(self, microbatch: MicroBatch) -> Tensor:
        """Return the score of every sequence, at its last token, `[S]`."""
        scores: Tensor = self.engine(
            self._tensor(microbatch.token_ids).long(),
            self._tensor(microbatch.position_ids).long(),
            self._tensor(microbatch.ends),
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
