"""A learner that is a plain transformers model, and a real engine as a publish sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf.engines.vllm.engine_worker import EngineWorker
from rlhf.images import PlacedImage
from rlhf.models.rounding import rounded
from rlhf.types import Completion, PolicyVersion, Routing, TokenLogprobs
from rlhf.weight_sync import weights
from rlhf.weight_sync.broadcast import BroadcastSender
from rlhf.weight_sync.types import Load, Manifest, Rendezvous, Seconds
from tests.engines.vllm.made import made_settings
from tests.weight_sync.transports import rendezvous

BUCKET_BYTES = 2**16
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""What the models of these tests call their linear layers, as engines are told."""
ROUNDING = {"float32": 1e-4, "bfloat16": 0.1}
"""Nats: more than rounding makes of the log-probs of these small models."""


def assert_sampled_by(reply: Any, scores: Mapping[int, NDArray[np.float32]]) -> None:
    """Every token of a reply has the log-prob that the version which sampled it gives, and no other's."""
    assert set(reply.versions.tolist()) == set(scores)
    for version, expected in scores.items():
        sampled = reply.versions == version
        gaps = np.abs(expected - reply.behaviour_logprobs)
        assert gaps[sampled].max() < 1e-4
        assert gaps[~sampled].max(initial=1.0) > 1e-2


class TorchLearner:
    """A `WeightSource` over a Hugging Face folder, which publishes in `form`."""

    form: weights.Form = "merged"
    policies = ("",)

    def __init__(self, folder: Path, dtype: str) -> None:
        self.model = self.loaded(folder, dtype)
        self.dtype, self._version = dtype, 0
        self.sender = BroadcastSender()
        self.turn = asyncio.Lock()
        self._saved: list[torch.Tensor] = []

    def loaded(self, folder: Path, dtype: str) -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        return model.eval()

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def rendezvous(self, world_size: int) -> Rendezvous:
        # Buckets of 64 KiB end between q, k and v of these small models.
        return rendezvous(world_size, bucket_bytes=BUCKET_BYTES)

    async def give_up(self) -> None:
        """gloo notices a peer that is gone."""

    async def connect(self, rendezvous: Rendezvous) -> None:
        await asyncio.to_thread(self.sender.connect, rendezvous)

    async def manifest(self) -> Manifest:
        return weights.publish_manifest(self, self.form)

    async def send(self) -> Seconds:
        await asyncio.to_thread(
            self.sender.send, weights.published_tensors(self, BUCKET_BYTES, self.form), await self.manifest()
        )
        return {}

    async def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        ids = torch.tensor(np.atleast_2d(token_ids), dtype=torch.long)
        with torch.no_grad():
            logprobs = self.model(ids).logits.float().log_softmax(-1)
        found = logprobs[:, :-1].gather(-1, ids[:, 1:, None])[..., 0].numpy()
        return found.reshape(token_ids[..., 1:].shape)

    async def rounded_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        with rounded(self.model):
            return await self.token_logprobs(token_ids, images=images)

    async def perturb(self) -> None:
        self._saved = weights.snapshot(self, self.form)
        weights.perturb(self, self.form)

    async def restore(self) -> None:
        weights.put_back(self, self._saved, self.form)

    def update(self, size: float) -> None:
        """An optimizer step of `size` in every element that is trained, as Adam's first ones are."""
        self._version += 1
        generator = torch.Generator().manual_seed(self._version)
        with torch.no_grad():
            for weight in self.model.parameters():
                if weight.requires_grad:
                    weight.add_(size * torch.randn(weight.shape, generator=generator).sign().to(weight.dtype))


class ThreadedEngine:
    """A `PublishTarget` over an `EngineWorker` in this process."""

    transfer_ranks = 1

    def __init__(self, folder: Path, dtype: str, **settings: Any) -> None:
        self.name, self.policies = "engine-0", settings.get("policies", ("",))
        self.worker = EngineWorker(
            self.name,
            made_settings(
                folder,
                **{
                    "dtype": dtype,
                    "weight_transfer": "gloo",
                    "kv_cache_megabytes": 16,
                    "max_sequences": 8,
                    "weight_sync_timeout_seconds": 60,
                }
                | settings,
            ),
        )
        self.worker.start()

    async def connect(self, rendezvous: Rendezvous, first_rank: int) -> None:
        await asyncio.to_thread(self.worker.connect, rendezvous, first_rank)

    async def prepare(self, manifest: Manifest) -> Load:
        return await asyncio.to_thread(self.worker.prepare, manifest)

    async def receive(self, manifest: Manifest) -> Seconds:
        return await asyncio.to_thread(self.worker.receive, manifest)

    async def commit(self, version: PolicyVersion) -> None:
        await asyncio.to_thread(self.worker.commit, version)

    async def token_logprobs(
        self, token_ids: NDArray[np.int32], policy: str = "", images: Sequence[PlacedImage] = ()
    ) -> TokenLogprobs:
        return await asyncio.to_thread(self.worker.token_logprobs, token_ids, policy, images)

    async def extend(self, token_ids: NDArray[np.int32], tokens: int, policy: str = "") -> Completion:
        return await asyncio.to_thread(self.worker.extend, token_ids, tokens, policy)

    async def resume(self) -> None:
        await asyncio.to_thread(self.worker.resume)

    def look(self, at: Callable[[torch.nn.Module], Any]) -> Any:
        """What `at(model)` sees of the engine's model."""
        return self.worker._thread.run(
            lambda engine: engine._engine.apply_model(at)[0], awaited="look", timeout_seconds=60
        )

    def stop(self) -> None:
        self.worker.close()
