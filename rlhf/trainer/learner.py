"""The learner as the controller sees it: groups in, metrics out, whichever processes the ranks live in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.cluster.worker import Worker
from rlhf.errors import WorkerDied
from rlhf.trainer.answers import RankAnswer, reduce_metrics, scatter
from rlhf.trainer.batch import ROW_TOKENS, Batch, Floats, build_batch, build_minibatches
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.settings import LearnerSettings
from rlhf.types import Group, Manifest, PolicyVersion, Rendezvous, TrainedSample, Updated

AdvantageFunction = Callable[[Sequence[Group]], list[Floats]]
DEATH_GRACE_SECONDS = 3.0
"""When one rank dies the others fail at once, with an error of their own: time for the true cause to arrive."""


class RemoteLearner:
    """Satisfies `Learner` and `WeightSource`. An update is one call a rank."""

    def __init__(
        self,
        workers: Sequence[Worker],
        config: TrainerConfig,
        *,
        advantages: AdvantageFunction,
        transfer_backend: str = "gloo",
        publish_timeout_seconds: float = 120.0,
        row_tokens: int = ROW_TOKENS,
    ) -> None:
        self._workers, self._config, self._advantages = list(workers), config, advantages
        self._transfer_backend, self._publish_seconds = transfer_backend, publish_timeout_seconds
        self._row_tokens = row_tokens
        self._version: PolicyVersion = 0

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def start(self, settings: LearnerSettings) -> dict[str, Any]:
        """Start every rank and let them meet. Returns rank 0's facts; raises `ModelError` for a model that is none."""
        seconds = self._config.deepspeed.start_timeout_seconds
        address, port = await self._workers[0].call("address", timeout_seconds=seconds)
        size = len(self._workers)
        facts = await self._each("start", [(rank, size, address, port, settings) for rank in range(size)], seconds)
        return dict(facts[0])

    async def update(self, groups: Sequence[Group]) -> Updated:
        """Advantages and batch here, all optimizer steps on the ranks."""
        batch = build_batch(groups, self._advantages(groups), aggregation=self._config.loss.aggregation)
        parts = build_minibatches(
            batch,
            minibatches=self._config.minibatches,
            ranks=len(self._workers),
            tokens_per_microbatch=self._config.tokens_per_microbatch,
            row_tokens=self._row_tokens,
        )
        answers: list[RankAnswer] = []
        if parts[0]:
            answers = await self._each("update", [(part, self._config.epochs) for part in parts], self._seconds)
        self._version += 1
        computed = sum(m.tokens for part in parts for minibatch in part for m in minibatch.microbatches)
        return Updated(
            metrics=reduce_metrics(answers) | _sizes(batch, computed),
            samples=_trained(batch, scatter(answers, len(batch.advantages))),
        )

    async def imitate(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of supervised learning on a batch of demonstrations."""
        parts = build_minibatches(
            batch,
            minibatches=1,
            ranks=len(self._workers),
            tokens_per_microbatch=self._config.tokens_per_microbatch,
            row_tokens=self._row_tokens,
        )
        answers = await self._each("imitate", [(part,) for part in parts], self._seconds)
        self._version += 1
        return reduce_metrics(answers)

    async def save(self, path: Path) -> None:
        """Every rank writes its part of the state into `path`, rank 0 also `path/huggingface`."""
        await self._all("save", path, self._version, seconds=self._seconds)

    async def load(self, path: Path) -> None:
        """Continue exactly from `save`: weights, optimizer, schedule and version. The plan must be the same."""
        versions = await self._all("load", path, seconds=self._seconds)
        self._version = versions[0]

    async def export(self, path: Path) -> None:
        """Write the policy as a Hugging Face folder with tokenizer and chat template."""
        await self._all("export", path, seconds=self._seconds)

    async def rendezvous(self, world_size: int) -> Rendezvous:
        address, port = await self._workers[0].call("address", timeout_seconds=self._publish_seconds)
        return Rendezvous(
            backend=self._transfer_backend,
            address=address,
            port=port,
            world_size=world_size,
            timeout_seconds=self._publish_seconds,
            bucket_bytes=int(self._config.publish.bucket_megabytes * 2**20),
        )

    async def connect(self, rendezvous: Rendezvous) -> None:
        await self._all("connect", rendezvous, seconds=self._publish_seconds)

    async def manifest(self) -> Manifest:
        manifest: Manifest = await self._workers[0].call("manifest", timeout_seconds=self._publish_seconds)
        return manifest

    async def send(self) -> None:
        await self._all("send", seconds=self._publish_seconds)

    async def score(self, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
        scores: list[NDArray[np.float32]] = await self._all("score_tokens", token_ids, seconds=self._publish_seconds)
        return scores[0]

    async def perturb(self) -> None:
        await self._all("perturb", seconds=self._publish_seconds)

    async def restore(self) -> None:
        await self._all("restore", seconds=self._publish_seconds)

    async def stop(self) -> None:
        """Let the ranks leave their process group."""
        await self._all("stop", seconds=self._publish_seconds)

    @property
    def _seconds(self) -> float:
        return self._config.deepspeed.timeout_seconds

    async def _all(self, method: str, *arguments: Any, seconds: float) -> list[Any]:
        return await self._each(method, [arguments] * len(self._workers), seconds)

    async def _each(self, method: str, arguments: Sequence[tuple[Any, ...]], seconds: float) -> list[Any]:
        """Call all ranks at once, each with its own arguments. The first failure is raised, a death before others."""
        calls = [
            asyncio.ensure_future(worker.call(method, *own, timeout_seconds=seconds))
            for worker, own in zip(self._workers, arguments, strict=True)
        ]
        try:
            _, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                await asyncio.wait(pending, timeout=DEATH_GRACE_SECONDS)
            errors = [error for call in calls if call.done() and (error := call.exception())]
            if errors:
                raise next((error for error in errors if isinstance(error, WorkerDied)), errors[0])
            return [call.result() for call in calls]
        finally:
            for call in calls:
                call.cancel()


def _sizes(batch: Batch, computed: int) -> dict[str, float]:
    return {
        "trained_samples": float(len(batch.samples)),
        "trained_tokens": float(len(batch.advantages)),
        "computed_tokens": float(computed),
    }


def _trained(batch: Batch, logprobs: Floats) -> tuple[TrainedSample, ...]:
    pieces = zip(batch.samples, batch.per_sample(batch.advantages), batch.per_sample(logprobs), strict=True)
    return tuple(
        TrainedSample(ordinal=ordinal, sample=sample, advantages=advantages, logprobs=scored)
        for (ordinal, sample), advantages, scored in pieces
    )
