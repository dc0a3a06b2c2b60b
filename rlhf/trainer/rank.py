"""What a learner rank does, next to torch: forward passes, optimizer steps, weights out, state saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor, nn

from rlhf.errors import CheckpointError
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.models.policy import Policy
from rlhf.trainer import weights, zero
from rlhf.trainer.answers import RankAnswer
from rlhf.trainer.batch import MicroBatch, Minibatch
from rlhf.trainer.losses import engine_difference, off_policy_metrics, policy_loss, sft_loss, truncated_importance
from rlhf.trainer.settings import LearnerSettings
from rlhf.trainer.tally import Tally
from rlhf.transfer.perturbation import perturbed
from rlhf.transfer.sender import WeightSender, sender_for, walk
from rlhf.types import Manifest, PolicyVersion, Rendezvous

TAG = "state"


class Rank:
    """One rank's model, optimizer and place in the process group."""

    def __init__(self, rank: int, world_size: int, address: str, port: int, settings: LearnerSettings) -> None:
        self.rank, self.world_size, self.settings = rank, world_size, settings
        self.device = torch.device(settings.device)
        zero.join(rank, world_size, address, port, settings.device, settings.trainer.deepspeed.timeout_seconds)
        self.policy = _load(settings, gradient_checkpointing=settings.model.gradient_checkpointing)
        self.reference = _reference(settings)
        self.engine = zero.build_engine(self.policy, settings, world_size)
        self._sender: WeightSender | None = None
        self._held: list[Tensor] | None = None

    def facts(self) -> dict[str, Any]:
        config = self.policy.model.config
        return {
            "parameters": sum(int(np.prod(spec.shape)) for spec in self.manifest().tensors),
            "context_tokens": int(config.max_position_embeddings),
            "vocab_size": int(config.vocab_size),
        }

    def score(self, microbatches: Sequence[MicroBatch]) -> RankAnswer:
        tally = Tally()
        for microbatch in microbatches:
            with zero.scoring(self.engine):
                tally.keep(microbatch.places, self._forward(self.engine, microbatch)[0])
        return tally.answer()

    def score_tokens(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        ids = torch.as_tensor(token_ids, dtype=torch.long, device=self.device)[None]
        positions = torch.arange(ids.shape[1], device=self.device)
        with zero.scoring(self.engine):
            logprobs, _ = self.engine(ids, positions[None], positions[:-1], positions[1:], 1.0)
        scores: NDArray[np.float32] = logprobs.cpu().numpy()
        return scores

    def update(self, minibatches: Sequence[Minibatch], epochs: int) -> RankAnswer:
        tally = Tally()
        # Log-probs before the first step. With a single step they are those of its own pass: nothing to compute.
        rescore = self.settings.trainer.old_logprobs == "recomputed" and len(minibatches) * epochs > 1
        old = self._scores(self.engine if rescore else None, minibatches)
        reference = self._scores(self.reference, minibatches)
        for epoch in range(epochs):
            for step, minibatch in enumerate(minibatches):
                losses = (
                    self._policy_loss(
                        micro,
                        minibatch.denominator,
                        before,
                        frozen,
                        tally,
                        first_pass=epoch == 0,
                        untouched=epoch == step == 0,
                    )
                    for micro, before, frozen in zip(minibatch.microbatches, old[step], reference[step], strict=True)
                )
                self._optimizer_step(losses, len(minibatch.microbatches), tally)
        return tally.answer()

    def imitate(self, minibatches: Sequence[Minibatch]) -> RankAnswer:
        tally = Tally()
        for minibatch in minibatches:
            losses = (self._sft_loss(microbatch, minibatch.denominator, tally) for microbatch in minibatch.microbatches)
            self._optimizer_step(losses, len(minibatch.microbatches), tally)
        return tally.answer()

    def manifest(self) -> Manifest:
        return weights.manifest(self.policy)

    def connect(self, rendezvous: Rendezvous) -> None:
        if self.rank == 0:
            self._sender = sender_for(rendezvous.backend)
            self._sender.connect(rendezvous)

    def send(self) -> None:
        tensors = weights.walk(self.policy, self.settings.bucket_bytes)
        if self._sender is None:
            walk(tensors)
        else:
            self._sender.send(tensors, self.manifest())

    def perturb(self) -> None:
        self._held = weights.snapshot(self.policy)
        weights.change(self.policy, self.settings.bucket_bytes, perturbed)

    def restore(self) -> None:
        if self._held is not None:
            weights.put_back(self.policy, self._held)
            self._held = None

    def save(self, path: Path, version: PolicyVersion) -> None:
        self.engine.save_checkpoint(str(path / "deepspeed"), tag=TAG)
        self.export(path / "huggingface")
        if self.rank == 0:
            (path / "learner.json").write_text(json.dumps({"version": version, "plan": self._plan}))

    def load(self, path: Path) -> PolicyVersion:
        try:
            saved = json.loads((path / "learner.json").read_text())
        except FileNotFoundError:
            raise CheckpointError(f"{path} holds no learner's state: it has no learner.json") from None
        if saved["plan"] != self._plan:
            raise CheckpointError(f"{path} was written by {saved['plan']}; this run has {self._plan}")
        self.engine.load_checkpoint(str(path / "deepspeed"), tag=TAG)
        return int(saved["version"])

    def export(self, path: Path) -> None:
        """Collective: all ranks gather, rank 0 writes weights, configuration, tokenizer and chat template."""
        state = weights.whole_state(self.policy, self.settings.bucket_bytes, keep=self.rank == 0)
        if self.rank == 0:
            self.policy.model.save_pretrained(path, state_dict=state)
            tokenizer = load_tokenizer(
                self.settings.model_path, trust_remote_code=self.settings.model.trust_remote_code
            )
            tokenizer.save_pretrained(path)
        torch.distributed.barrier()

    def stop(self) -> None:
        if self._sender is not None:
            self._sender.close()

    @property
    def _plan(self) -> str:
        """What DeepSpeed's state depends on besides the model."""
        stage, dtype = self.settings.trainer.deepspeed.zero_stage, self.settings.model.dtype
        return f"{self.world_size} rank(s) of ZeRO stage {stage} in {dtype}"

    def _optimizer_step(self, losses: Iterator[Tensor], count: int, tally: Tally) -> None:
        learning_rate = self.engine.get_lr()[0]
        loss = zero.accumulate(self.engine, losses, count, self.world_size)
        tally.add("loss", loss, count=1 / self.world_size)  # ranks' parts of a step's loss add up
        tally.step(grad_norm=zero.step(self.engine), learning_rate=learning_rate)

    def _policy_loss(
        self,
        microbatch: MicroBatch,
        denominator: float,
        old: Tensor | None,
        reference: Tensor | None,
        tally: Tally,
        *,
        first_pass: bool,
        untouched: bool,
    ) -> Tensor:
        """The loss of one micro-batch. `untouched` weights have taken no step of this update yet: only their distance
        from the engine says something about the engine."""
        logprobs, entropy = self._forward(self.engine, microbatch)
        behaviour = self._tensor(microbatch.behaviour_logprobs)
        importance = None
        if self.settings.trainer.old_logprobs == "recomputed":
            old = logprobs.detach() if old is None else old
            importance = truncated_importance(old, behaviour, self.settings.trainer.importance_cap)
        loss, metrics = policy_loss(
            logprobs,
            behaviour if old is None else old,
            self._tensor(microbatch.advantages),
            self._tensor(microbatch.weights),
            denominator,
            clip_low=self.settings.trainer.loss.clip_low,
            clip_high=self.settings.trainer.loss.clip_high,
            importance=importance,
            reference_logprobs=reference,
            kl_coefficient=self.settings.trainer.loss.kl_coefficient,
        )
        tally.see(metrics)
        tally.see(off_policy_metrics(logprobs, entropy, behaviour))
        if first_pass:
            before = logprobs.detach() if old is None else old
            if old is not None or untouched:
                tally.see(engine_difference(before, behaviour))
            tally.keep(microbatch.places, before)
        return loss

    def _sft_loss(self, microbatch: MicroBatch, denominator: float, tally: Tally) -> Tensor:
        logprobs, _ = self._forward(self.engine, microbatch)
        loss, metrics = sft_loss(logprobs, self._tensor(microbatch.weights), denominator)
        tally.see(metrics)
        return loss

    def _scores(self, module: nn.Module | None, minibatches: Sequence[Minibatch]) -> list[list[Tensor | None]]:
        """Log-probs by step and micro-batch, without gradients; `None` everywhere without a module to ask."""
        with zero.scoring(self.engine):
            return [
                [self._forward(module, microbatch)[0] if module else None for microbatch in minibatch.microbatches]
                for minibatch in minibatches
            ]

    def _forward(self, module: nn.Module, microbatch: MicroBatch) -> tuple[Tensor, Tensor]:
        logprobs, entropy = module(
            self._tensor(microbatch.token_ids).long(),
            self._tensor(microbatch.position_ids).long(),
            self._tensor(microbatch.sources),
            self._tensor(microbatch.targets),
            self.settings.temperature,
        )
        return logprobs, entropy

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=self.device)


def _load(settings: LearnerSettings, *, gradient_checkpointing: bool) -> Policy:
    return Policy(
        load_policy(
            settings.model_path,
            dtype=settings.model.dtype,
            attention=settings.model.attention,
            gradient_checkpointing=gradient_checkpointing,
            trust_remote_code=settings.model.trust_remote_code,
        )
    ).to(settings.device)


def _reference(settings: LearnerSettings) -> Policy | None:
    """A frozen copy of the start, held whole on every rank, only when the loss has a KL term."""
    if settings.trainer.loss.kl_coefficient == 0:
        return None
    return _load(settings, gradient_checkpointing=False).requires_grad_(False).eval()
