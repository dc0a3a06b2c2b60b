"""Client of the learner ranks for the controller: groups in, metrics out, wherever the ranks run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.cluster.worker import Worker
from rlhf.errors import PolicyMismatch, WorkerDied
from rlhf.runs.durable import synced
from rlhf.trainer.advantages import shuffled_rewards
from rlhf.trainer.aggregation import Aggregation
from rlhf.trainer.answers import RankAnswer, reduce_metrics, scatter, with_effective_sample_size
from rlhf.trainer.batch import ROW_TOKENS, Batch, Minibatch, build_batch, build_minibatches
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit import forward_request_of, with_advantages
from rlhf.trainer.disagreement import explain_disagreement
from rlhf.trainer.forward_outputs import ForwardOutputs, gather_forward_outputs
from rlhf.trainer.kl_control import kl_controller, read_controller, write_controller
from rlhf.trainer.settings import LearnerSettings, UpdateArguments
from rlhf.transfer.types import Manifest, Meeting, Rendezvous
from rlhf.types import Group, PolicyVersion, Routing, TrainedSample, Updated, Written

DEATH_GRACE_SECONDS = 3.0
"""When one rank dies the others fail at once, with an error of their own: time for the true cause to arrive."""


class RemoteLearner:
    """Implements `Learner` and `WeightSource`. An update is one call per rank, or two where the advantages need outputs
    of the ranks."""

    def __init__(
        self,
        workers: Sequence[Worker],
        config: TrainerConfig,
        *,
        max_tokens: int = 16,
        shuffle_seed: int = 0,
        transfer_backend: str = "gloo",
        publish_timeout_seconds: float = 120.0,
        row_tokens: int = ROW_TOKENS,
        plays: bool = False,
    ) -> None:
        """`max_tokens` is the longest reply; `shuffle_seed` deals the rewards of the control experiment. Only where the
        groups were played with this learner's weights (`plays`) can their log-probs be held against its own."""
        self._workers, self._config = list(workers), config
        self._max_tokens, self._shuffle_seed = max_tokens, shuffle_seed
        self._kl = kl_controller(config.kl)
        self._transfer_backend, self._publish_seconds = transfer_backend, publish_timeout_seconds
        self._row_tokens = row_tokens
        self._guarded = plays and config.mismatch == "stop"
        self._sharing = config.deepspeed.sequence_parallel
        self._version: PolicyVersion = 0

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def start(self, settings: LearnerSettings) -> dict[str, Any]:
        """Start every rank and join them. Returns rank 0's facts; raises `ModelError` for an invalid model."""
        seconds = self._config.deepspeed.start_timeout_seconds
        meeting = await self._workers[0].call("meeting", timeout_seconds=seconds)
        size = len(self._workers)
        facts = await self._each("start", [(rank, size, meeting, settings) for rank in range(size)], seconds)
        return dict(facts[0])

    async def update(self, groups: Sequence[Group]) -> Updated:
        """Compute forward outputs on the ranks, advantages here, and optimizer steps on the ranks."""
        groups = self._dealt(groups)
        batch = build_batch(
            groups,
            aggregation=self._config.loss.aggregation,
            mask_truncated=self._config.overlong.mask_truncated,
            version=self._version if self._guarded else None,
        )
        outputs = await self._forward_outputs(batch)
        batch, estimated = with_advantages(batch, groups, outputs, self._config, self._kl.coefficient, self._max_tokens)
        parts = self._cut(batch, self._config.minibatches)
        arguments = UpdateArguments(
            epochs=self._config.epochs,
            kl_coefficient=self._kl.coefficient,
            policy_learns=self._config.critic is None or self._version >= self._config.critic.warmup_updates,
        )
        answers: list[RankAnswer] = []
        if parts[0]:
            answers = await self._each("update", [(part, arguments) for part in parts], self._seconds)
        self._stop_on_mismatch(batch, answers)
        self._version += 1
        metrics = (
            estimated | with_effective_sample_size(reduce_metrics(answers)) | _sizes(batch, parts[:: self._sharing])
        )
        return Updated(metrics=self._steered(metrics, len(batch.samples)), samples=_trained(batch, answers))

    async def imitate(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of supervised learning on a batch of demonstrations."""
        parts = self._cut(batch, 1, aggregation="token_mean")
        answers = await self._each("imitate", [(part,) for part in parts], self._seconds)
        self._version += 1
        return reduce_metrics(answers)

    async def save(self, path: Path) -> dict[str, Written]:
        """Every rank writes its part of the state into `path`, rank 0 also `path/huggingface`. Returns what they wrote,
        which is on the disk, by path within `path`."""
        written = await self._all("save", path, self._version, seconds=self._seconds)
        own = write_controller(path, self._kl.coefficient)
        return {name: one for part in (*written, synced(path, [own])) for name, one in part.items()}

    async def load(self, path: Path) -> None:
        """Continue exactly from `save`: weights, optimizer, schedule and version. The plan must be the same."""
        versions = await self._all("load", path, seconds=self._seconds)
        self._version = versions[0]
        if self._config.kl.target is not None:
            self._kl = replace(self._kl, coefficient=read_controller(path))

    async def export(self, path: Path) -> None:
        """Write the policy as a Hugging Face folder with tokenizer and chat template."""
        await self._all("export", path, seconds=self._seconds)

    async def rendezvous(self, world_size: int) -> Rendezvous:
        backend = self._transfer_backend
        meeting: Meeting = await self._workers[0].call("meeting", backend, timeout_seconds=self._publish_seconds)
        return Rendezvous(
            backend=backend,
            address=meeting.address,
            port=meeting.port,
            secret=meeting.secret,
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

    async def token_logprobs(self, token_ids: NDArray[np.int32], routing: Routing | None = None) -> NDArray[np.float32]:
        return await self._all_tokens("score_tokens", token_ids, routing)

    async def rounding(self, token_ids: NDArray[np.int32], routing: Routing | None = None) -> NDArray[np.float32]:
        return await self._all_tokens("rounding", token_ids, routing)

    async def perturb(self) -> None:
        await self._all("perturb", seconds=self._publish_seconds)

    async def restore(self) -> None:
        await self._all("restore", seconds=self._publish_seconds)

    async def stop(self) -> None:
        """Let the ranks leave their process group."""
        await self._all("stop", seconds=self._publish_seconds)

    async def _forward_outputs(self, batch: Batch) -> ForwardOutputs:
        """What the recipe needs to know of a batch before its first optimizer step."""
        wanted = forward_request_of(self._config)
        if not (wanted.anything and batch.tokens):
            return ForwardOutputs()
        parts = self._cut(batch, 1)
        calls = [(part[0].microbatches, wanted) for part in parts]
        return gather_forward_outputs(
            await self._each("forward_outputs", calls, self._seconds), batch.tokens, len(batch.samples)
        )

    def _cut(
        self, batch: Batch, minibatches: int, *, aggregation: Aggregation | None = None, whole_groups: bool = False
    ) -> list[tuple[Minibatch, ...]]:
        """Every rank's part; ranks that share rows have the same."""
        loss = self._config.loss
        parts = build_minibatches(
            batch,
            minibatches=minibatches,
            ranks=len(self._workers) // self._sharing,
            tokens_per_microbatch=self._config.tokens_per_microbatch * self._sharing,
            row_tokens=self._row_tokens,
            aggregation=aggregation or loss.aggregation,
            constant_tokens=float(loss.constant_tokens or self._max_tokens),
            whole_groups=whole_groups,
        )
        return [part for part in parts for _ in range(self._sharing)]

    def _stop_on_mismatch(self, batch: Batch, answers: Sequence[RankAnswer]) -> None:
        """Raises `PolicyMismatch` when the ranks took no step because of one."""
        found = answers[0].disagreement if answers else None
        if found:
            passed = scatter(answers, batch.tokens)
            scored = batch.per_token.proximal
            raise PolicyMismatch(
                explain_disagreement(batch, passed if scored is None else scored, found, self._version)
            )

    def _dealt(self, groups: Sequence[Group]) -> Sequence[Group]:
        if not self._config.shuffle_rewards:
            return groups
        return shuffled_rewards(groups, seed=self._shuffle_seed + groups[0].ticket.ordinal)

    def _steered(self, metrics: dict[str, float], samples: int) -> dict[str, float]:
        """The metrics, with the KL coefficient that was used; the next update's follows the KL they report."""
        if not self._config.kl.coefficient:
            return metrics
        used = self._kl.coefficient
        if "kl_reference" in metrics:
            self._kl = self._kl.after(metrics["kl_reference"], samples)
        return metrics | {"kl_coefficient": used}

    @property
    def _seconds(self) -> float:
        return self._config.deepspeed.timeout_seconds

    async def _all_tokens(self, method: str, *of: Any) -> NDArray[np.float32]:
        """What all ranks say alike of a canary's tokens."""
        told: list[NDArray[np.float32]] = await self._all(method, *of, seconds=self._publish_seconds)
        return told[0]

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


def _sizes(batch: Batch, parts: Sequence[Sequence[Minibatch]]) -> dict[str, float]:
    computed = sum(micro.tokens for part in parts for minibatch in part for micro in minibatch.microbatches)
    return {
        "trained_samples": float(len(batch.samples)),
        "trained_tokens": float(batch.tokens),
        "computed_tokens": float(computed),
    }


def _trained(batch: Batch, answers: Sequence[RankAnswer]) -> tuple[TrainedSample, ...]:
    logprobs = scatter(answers, batch.tokens)
    pieces = zip(batch.samples, batch.per_sample(batch.per_token.advantages), batch.per_sample(logprobs), strict=True)
    return tuple(
        TrainedSample(ordinal=ordinal, sample=sample, advantages=advantages, logprobs=scored)
        for (ordinal, sample), advantages, scored in pieces
    )
