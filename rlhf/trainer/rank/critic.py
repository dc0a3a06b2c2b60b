"""The critic on a learner rank: a value model with its own DeepSpeed engine next to the policy's."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf.chat.image_reader import check_same_images
from rlhf.models.probe import proved_rows, sight_of
from rlhf.models.scalar import ScalarHead, check_same_vocabulary, load_scalar
from rlhf.trainer.batching.batch import MicroBatch, Minibatch
from rlhf.trainer.config import CriticConfig
from rlhf.trainer.losses import LossMetrics, value_loss
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.sequence_parallel import as_scalar_head
from rlhf.trainer.rank.sharding import module_by_module
from rlhf.trainer.settings import LearnerSettings


class Critic:
    """Values of states, and optimizer steps towards their targets."""

    def __init__(self, config: CriticConfig, settings: LearnerSettings, world_size: int) -> None:
        self.config, self.world_size = config, world_size
        self.sequence_parallel = settings.trainer.deepspeed.sequence_parallel
        self.device = torch.device(settings.device)
        path, setting = config.path or settings.model_path, "trainer.critic.path"
        if config.path is not None:
            trusted = settings.model.trust_remote_code
            check_same_vocabulary(settings.model_path, path, trust_remote_code=trusted, setting=setting)
            if settings.model.tower:
                check_same_images(settings.model_path, path, trust_remote_code=trusted, setting=setting)
        fresh = config.path is None
        self.module = load_scalar_head(path, settings, world_size, fresh_head=fresh, setting=setting)
        steps = settings.trainer.optimizer_steps
        self.engine = zero.build_engine(self.module, config.optimizer, settings, world_size, total_steps=steps)

    def values(self, microbatch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Values before every ACTION token `[A]`, and after the last token of every sequence `[S]`; no gradient."""
        with zero.forward_only(self.engine):
            actions = len(microbatch.sources)
            both = self._forward(
                microbatch, torch.cat([self._tensor(microbatch.sources), self._tensor(microbatch.ends)])
            )
        return both[:actions], both[actions:]

    def step(self, minibatch: Minibatch, accumulator: MetricAccumulator) -> None:
        """One optimizer step on the value loss, averaged over the minibatch's ACTION tokens."""
        total = torch.zeros((), device=self.device)
        for microbatch in minibatch:
            assert microbatch.values is not None, "the critic was asked before the update"
            assert microbatch.returns is not None, "advantages with a critic have targets"
            values = self._forward(microbatch, self._tensor(microbatch.sources))
            old, returns = self._tensor(microbatch.values), self._tensor(microbatch.returns)
            losses = value_loss(values, old, returns, self.config.value_clip)
            if self.config.value_clip is not None:
                clipped = ((values.detach() - old).abs() > self.config.value_clip).float().sum()
                accumulator.see(LossMetrics(len(values), {"critic/clip_fraction": clipped}))
            last = microbatch is minibatch[-1]
            total = total + zero.backward(
                self.engine, losses.sum() / microbatch.step_tokens, self.world_size, last=last
            )
        accumulator.add("critic/loss", total, count=self.sequence_parallel / self.world_size)
        learning_rate = self.engine.get_lr()[0]
        grad_norm = zero.step(self.engine, "trainer.critic.optimizer")
        accumulator.step({"critic/grad_norm": grad_norm, "critic/learning_rate": learning_rate})

    def _forward(self, microbatch: MicroBatch, places: Tensor) -> Tensor:
        rows = (self._tensor(microbatch.token_ids).long(), self._tensor(microbatch.position_ids).long())
        values: Tensor = self.engine(*rows, places, images=microbatch.images)
        return values

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=self.device)


def load_scalar_head(
    path: str, settings: LearnerSettings, world_size: int, *, fresh_head: bool, setting: str
) -> ScalarHead:
    """Return a model with one number per token, as a rank trains it; `setting` is the recipe key of its `path`."""
    model = load_scalar(
        path,
        dtype=settings.model.dtype,
        attention=settings.model.attention,
        gradient_checkpointing=settings.model.gradient_checkpointing,
        offload_activations=settings.model.offload_activations,
        trust_remote_code=settings.model.trust_remote_code,
        fresh_head=fresh_head,
        setting=setting,
        sharding=zero.sharding(settings, world_size),
        trains_tower=settings.model.tower == "trained",
    )
    with module_by_module(model):
        rows = proved_rows(
            model,
            path,
            device=settings.device,
            setting=setting,
            packing=settings.trainer.packing,
            sight=sight_of(settings.model.tower, path, trust_remote_code=settings.model.trust_remote_code),
        )
    return as_scalar_head(model, settings, rows)
