"""A learner of any family, as a publish sees it: the policy as the ranks load, prove and name it, without DeepSpeed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf.models.config import LoraConfig
from rlhf.models.loading import load_policy
from rlhf.models.lora import add_lora
from rlhf.models.policy import Policy
from rlhf.models.probe import check_model
from rlhf.trainer import weights
from rlhf.transfer.perturbation import perturbed
from rlhf.transfer.sender import GlooSender
from rlhf.types import Manifest, PolicyVersion, Rendezvous
from tests.transfer.meeting import rendezvous

BUCKET_BYTES = 2**16
"""Buckets that end between the parts of a layer."""


class FamilyLearner:
    """A `WeightSource` over a folder."""

    def __init__(self, folder: Path, *, attention: str, lora: LoraConfig | None = None) -> None:
        loaded = load_policy(str(folder), attention=attention)
        check_model(loaded, folder.name)
        self.policy = Policy(add_lora(loaded, lora))
        self.form: weights.Form = lora.publish if lora else "merged"
        self.version: PolicyVersion = 0
        self.sender = GlooSender()
        self._saved: list[Tensor] = []

    async def rendezvous(self, world_size: int) -> Rendezvous:
        return rendezvous(world_size, bucket_bytes=BUCKET_BYTES)

    async def connect(self, rendezvous: Rendezvous) -> None:
        await asyncio.to_thread(self.sender.connect, rendezvous)

    async def manifest(self) -> Manifest:
        return weights.manifest(self.policy, self.form)

    async def send(self) -> None:
        tensors = weights.walk(self.policy, BUCKET_BYTES, self.form)
        await asyncio.to_thread(self.sender.send, tensors, await self.manifest())

    async def score(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        ids = torch.tensor(token_ids, dtype=torch.long)
        targets = torch.arange(1, len(ids))
        with torch.no_grad():
            logprobs, _ = self.policy(ids[None], torch.arange(len(ids))[None], targets - 1, targets, 1.0)
        found: NDArray[np.float32] = logprobs.numpy()
        return found

    async def rounding(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        raise NotImplementedError("in float32 the limits are fixed")

    async def perturb(self) -> None:
        self._saved = weights.snapshot(self.policy)
        weights.change(self.policy, BUCKET_BYTES, perturbed, self.form)

    async def restore(self) -> None:
        weights.put_back(self.policy, self._saved)

    def update(self, size: float) -> None:
        """An optimizer step of `size` in every element that is trained, as Adam's first ones are."""
        self.version += 1
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for weight in self.policy.parameters():
                if weight.requires_grad:
                    weight.add_(size * torch.randn(weight.shape, generator=generator).sign())
