"""Client of the learner ranks for the controller: groups in, metrics out, wherever the ranks run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf.cluster.worker import Worker, WorkerHandle
from rlhf.durable import synced
from rlhf.errors import DeadlinePassed, PolicyMismatch, RanksHang, WorkerDied
from rlhf.images import PlacedImage
from rlhf.trainer.aggregation import Aggregation
from rlhf.trainer.arrays import Floats
from rlhf.trainer.batching.batch import ROW_TOKENS, Batch, Minibatch, build_batch, build_minibatches, places_of
from rlhf.trainer.batching.forward_outputs import with_forward_outputs
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.advantages import forward_columns, with_advantages
from rlhf.trainer.credit.kl import KLController, read_controller, write_controller
from rlhf.trainer.credit.rewards import shuffled_rewards
from rlhf.trainer.credit.statistics import batch_statistics, trained_statistics
from rlhf.trainer.mismatch_report import explain_disagreement
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank_answers import RankAnswer, reduce_metrics, scatter, with_effective_sample_size
from rlhf.trainer.settings import LearnerSettings, Residency, UpdateArguments
from rlhf.types import Group, PolicyVersion, Routing, TrainedSample, Updated, Written
from rlhf.weight_sync.types import GroupAddress, Manifest, Rendezvous, Seconds

A = TypeVar("A")
R = TypeVar("R")

TRANSFER_SHARE = 0.7
"""Share of a weight sync's deadline after which a member gives up its peers, before the phase gives up the member."""
DEATH_GRACE_SECONDS = 3.0
"""When one rank dies the others fail at once with errors: time for the true cause to arrive."""
WRITE_GRACE_SECONDS = 10.0
"""A rank says when its part was not written in time: time for its answer to arrive."""
PLACE_SECONDS = 5.0


class RemoteLearner:
    """Implements `Updates`, `Saves` and `WeightSource`. An update is one call per rank, or two where the advantages
    need outputs of the ranks."""

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
        """`max_tokens` is the longest reply; `shuffle_seed` deals the rewards of the control experiment. Log-probs of
        groups can be compared with the learner's own only if its weights played them (`plays`)."""
        self._ranks, self._config = [WorkerHandle[LearnerWorker](worker) for worker in workers], config
        self._max_tokens, self._shuffle_seed = max_tokens, shuffle_seed
        self._kl = KLController(config.kl.coefficient, config.kl.target, config.kl.horizon)
        self._transfer_backend, self._publish_seconds = transfer_backend, publish_timeout_seconds
        self._row_tokens, self._packs = row_tokens, True
        self._plays = plays
        self._sharing = config.deepspeed.sequence_parallel
        self._version: PolicyVersion = 0
        self._transfer: GroupAddress | None = None
        self.turn = asyncio.Lock()
        """The ranks do one thing at a time: an update, a save, or a weight sync."""

    @property
    def policies(self) -> tuple[str, ...]:
        return ("",)

    @property
    def version(self) -> PolicyVersion:
        return self._version

    async def start(self, settings: LearnerSettings) -> dict[str, Any]:
        """Start every rank and join them. Returns rank 0's facts; raises `ModelError` for an invalid model."""
        seconds = self._config.deepspeed.start_timeout_seconds
        address = await self._ranks[0].call(lambda worker: worker.group_address(), timeout_seconds=seconds)
        size = len(self._ranks)
        facts = await self._each(lambda worker, n: worker.start(n, size, address, settings), range(size), seconds)
        self._packs = not facts[0]["why_alone"]
        return facts[0]

    async def update(self, groups: Sequence[Group]) -> Updated:
        """Compute forward outputs on the ranks, advantages here, and optimizer steps on the ranks."""
        async with self.turn:
            batch, parts = await asyncio.to_thread(self._packed, groups)
            wanted = forward_columns(self._config)
            if wanted and parts[0]:
                scored = await self._each(
                    lambda worker, part: worker.policy.forward_outputs(part, wanted), parts, self._seconds
                )
                batch = with_forward_outputs(batch, parts, scored)
            batch, estimated, columns = await asyncio.to_thread(self._credited, batch, parts)
            counting = asyncio.ensure_future(
                asyncio.to_thread(batch_statistics, groups, version=self._version if self._plays else None)
            )
            answers = await self._train([None] * len(parts) if wanted else parts, columns) if parts[0] else []
            self._stop_on_mismatch(batch, answers)
            self._version += 1
            trained = await asyncio.to_thread(_trained, batch, answers)
            metrics = (
                await counting
                | trained_statistics(groups, {(one.ordinal, one.sample) for one in trained})
                | estimated
                | with_effective_sample_size(reduce_metrics(answers))
                | computed_tokens(parts[:: self._sharing])
            )
            return Updated(metrics=self._steered(metrics, len(trained)), samples=trained)

    def _packed(self, groups: Sequence[Group]) -> tuple[Batch, list[tuple[Minibatch, ...]]]:
        """Return the batch of an update, and every rank's part of it."""
        batch = build_batch(
            self._dealt(groups),
            aggregation=self._config.loss.aggregation,
            overlong=self._config.overlong,
            max_tokens=self._max_tokens,
            version=self._version if self._plays else None,
        )
        return batch, self._cut(batch, self._config.minibatches)

    def _credited(
        self, batch: Batch, parts: Sequence[tuple[Minibatch, ...]]
    ) -> tuple[Batch, dict[str, float], list[dict[str, Floats]]]:
        """Return the batch with advantages, their metrics, and what every rank's part lacks."""
        batch, estimated = with_advantages(batch, self._config, self._kl.coefficient)
        return batch, estimated, [batch.columns_at(places_of(part), ("advantages", "returns")) for part in parts]

    async def imitate(self, batch: Batch) -> dict[str, float]:
        """One optimizer step of supervised learning on a batch of demonstrations."""
        parts = self._cut(batch, 1, aggregation="token_mean")
        answers = await self._each(lambda worker, part: worker.policy.imitate(part), parts, self._seconds)
        self._version += 1
        return reduce_metrics(answers)

    async def snapshot(self, path: Path) -> Awaitable[Mapping[str, Written]]:
        """Every rank copies its part of the state, and of `path/huggingface`, to host memory; training may then
        continue. The answer waits until everything is on disk below `path`."""
        async with self.turn:
            await self._all(lambda worker: worker.model.snapshot(path, self._version), self._seconds)
        return self._written(path, write_controller(path, self._kl.coefficient))

    async def save(self, path: Path) -> Mapping[str, Written]:
        """Save the state into `path`. Returns what was written, by path within it, once it is on disk."""
        return await (await self.snapshot(path))

    async def _written(self, path: Path, own: Path) -> dict[str, Written]:
        asked: Callable[[LearnerWorker], Any] = lambda worker: worker.model.written()  # noqa: E731 - a coroutine there
        written = await self._all(asked, self._seconds + WRITE_GRACE_SECONDS)
        own_part = await asyncio.to_thread(synced, path, [own])
        return {name: one for part in (*written, own_part) for name, one in part.items()}

    async def load(self, path: Path) -> None:
        """Continue exactly from `save`: weights, optimizer, schedule and version. The plan must be the same."""
        async with self.turn:
            versions = await self._all(lambda worker: worker.model.load(path), self._seconds)
        self._version = versions[0]
        if self._config.kl.target is not None:
            self._kl = replace(self._kl, coefficient=read_controller(path))

    async def export(self, path: Path) -> None:
        """Write the policy as a Hugging Face folder with tokenizer and chat template."""
        async with self.turn:
            await self._all(lambda worker: worker.model.export(path), self._seconds)

    async def hold(self, held: Residency) -> None:
        """Keep everything, only the weights, or nothing on the ranks' devices; the bytes stay the same."""
        await self._all(lambda worker: worker.model.hold(held), self._seconds)

    async def rendezvous(self, world_size: int) -> Rendezvous:
        backend = self._transfer_backend
        self._transfer = address = await self._ranks[0].call(
            lambda worker: worker.group_address(backend), timeout_seconds=self._publish_seconds
        )
        return Rendezvous(
            backend=backend,
            address=address,
            world_size=world_size,
            timeout_seconds=TRANSFER_SHARE * self._publish_seconds,
            bucket_bytes=self._config.weight_sync.bucket_bytes(on_gpu=backend != "gloo"),
            senders=len(self._ranks) if backend == "ipc" else 1,
        )

    async def connect(self, rendezvous: Rendezvous) -> None:
        await self._all(lambda worker: worker.policy.connect(rendezvous), self._publish_seconds)

    async def give_up(self) -> None:
        address = self._transfer
        if address is None or not address.nccl_id:
            return
        with suppress(WorkerDied, DeadlinePassed):
            await self._ranks[0].call(lambda worker: worker.give_up(address), timeout_seconds=PLACE_SECONDS)

    async def manifest(self) -> Manifest:
        return await self._ranks[0].call(lambda worker: worker.policy.manifest(), timeout_seconds=self._publish_seconds)

    async def send(self) -> Seconds:
        return (await self._all(lambda worker: worker.policy.send(), self._publish_seconds))[0]

    async def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        return await self._scores(token_ids, routing, images, rounded=False)

    async def rounded_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        return await self._scores(token_ids, routing, images, rounded=True)

    async def perturb(self) -> None:
        await self._all(lambda worker: worker.policy.perturb(), self._publish_seconds)

    async def restore(self) -> None:
        await self._all(lambda worker: worker.policy.restore(), self._publish_seconds)

    async def stop(self) -> None:
        """Let the ranks leave their process group."""
        await self._all(lambda worker: worker.stop(), self._publish_seconds)

    async def _scores(
        self, token_ids: NDArray[np.int32], routing: Routing | None, images: Sequence[PlacedImage], *, rounded: bool
    ) -> NDArray[np.float32]:
        """Log-probs of a sequence, computed by every rank, or of rows, of which every rank computes the same number."""
        rows, teams = np.atleast_2d(token_ids), len(self._ranks) // self._sharing
        experts = None if routing is None else routing.reshape(len(rows), -1, *routing.shape[-2:])
        own = [index // self._sharing + teams * np.arange(-(-len(rows) // teams)) for index in range(len(self._ranks))]
        scored = await self._each(
            lambda worker, places: worker.policy.token_logprobs(
                rows.take(places, axis=0, mode="wrap"),
                None if experts is None else experts.take(places, axis=0, mode="wrap"),
                images,
                rounded=rounded,
            ),
            own,
            self._publish_seconds,
        )
        found = np.empty((teams * len(own[0]), rows.shape[1] - 1), np.float32)
        for places, scores in zip(own, scored, strict=True):
            found[places] = scores
        return found[: len(rows)].reshape(token_ids[..., 1:].shape)

    def _train(
        self, parts: Sequence[Sequence[Minibatch] | None], columns: Sequence[dict[str, Floats]]
    ) -> Coroutine[Any, Any, list[RankAnswer]]:
        """Take the optimizer steps of an update. Ranks keep the parts that they scored: these are None."""
        arguments = UpdateArguments(
            epochs=self._config.epochs,
            kl_coefficient=self._kl.coefficient,
            policy_learns=self._config.critic is None or self._version >= self._config.critic.warmup_updates,
        )
        own = list(zip(parts, columns, strict=True))
        return self._each(lambda worker, given: worker.policy.update(*given, arguments), own, self._seconds)

    def _cut(
        self, batch: Batch, minibatches: int, *, aggregation: Aggregation | None = None, whole_groups: bool = False
    ) -> list[tuple[Minibatch, ...]]:
        """Every rank's part; ranks that share rows have the same."""
        loss = self._config.loss
        parts = build_minibatches(
            batch,
            minibatches=minibatches,
            ranks=len(self._ranks) // self._sharing,
            tokens_per_microbatch=self._config.tokens_per_microbatch * self._sharing,
            row_tokens=self._row_tokens,
            aggregation=aggregation or loss.aggregation,
            constant_tokens=float(loss.constant_tokens or self._max_tokens),
            whole_groups=whole_groups,
            packed=self._packs,
        )
        return [part for part in parts for _ in range(self._sharing)]

    def _stop_on_mismatch(self, batch: Batch, answers: Sequence[RankAnswer]) -> None:
        """Raise `PolicyMismatch` when the ranks took no step because of one."""
        found = answers[0].disagreement if answers else None
        if found:
            passed = scatter(answers, batch.tokens, lambda answer: answer.proximal_logprobs)
            scored = batch.proximal_logprobs
            raise PolicyMismatch(
                explain_disagreement(batch, passed if scored is None else scored, found, self._version)
            )

    def _dealt(self, groups: Sequence[Group]) -> Sequence[Group]:
        if not self._config.shuffle_rewards or not groups:
            return groups
        return shuffled_rewards(groups, seed=self._shuffle_seed + groups[0].ticket.ordinal)

    def _steered(self, metrics: dict[str, float], samples: int) -> dict[str, float]:
        """Return the metrics, with the KL coefficient that was used; the next update's follows the KL they report."""
        if not self._config.kl.coefficient:
            return metrics
        used = self._kl.coefficient
        if "policy/kl_reference" in metrics:
            self._kl = self._kl.after(metrics["policy/kl_reference"], samples)
        return metrics | {"policy/kl_coefficient": used}

    @property
    def _seconds(self) -> float:
        return self._config.deepspeed.timeout_seconds

    async def _all(self, ask: Callable[[LearnerWorker], R], seconds: float) -> list[R]:
        return await self._each(lambda worker, _: ask(worker), self._ranks, seconds)

    async def _each(self, ask: Callable[[LearnerWorker, A], R], own: Sequence[A], seconds: float) -> list[R]:
        """Call all ranks concurrently, each with its own argument. Raises the first failure; a worker's death takes
        precedence. When a deadline passes, `RanksHang` says where each rank is: all of them are late if one is."""

        def asking(argument: A) -> Callable[[LearnerWorker], R]:
            return lambda worker: ask(worker, argument)

        calls = [
            asyncio.ensure_future(rank.call(asking(argument), timeout_seconds=seconds))
            for rank, argument in zip(self._ranks, own, strict=True)
        ]
        try:
            _, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                await asyncio.wait(pending, timeout=DEATH_GRACE_SECONDS)
            errors = [error for call in calls if call.done() and (error := call.exception())]
            if errors:
                told = next((error for error in errors if isinstance(error, WorkerDied)), errors[0])
                raise await self._with_places(told) if isinstance(told, DeadlinePassed) else told
            return [call.result() for call in calls]
        finally:
            for call in calls:
                call.cancel()

    async def _with_places(self, late: DeadlinePassed) -> RanksHang:
        """Ask every rank where it is, and return the error that says it."""
        asked = [rank.call(lambda worker: worker.whereabouts(), timeout_seconds=PLACE_SECONDS) for rank in self._ranks]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        places = {
            rank.name: None if isinstance(answer, BaseException) else answer
            for rank, answer in zip(self._ranks, answers, strict=True)
        }
        return RanksHang(f"{late.awaited.partition('.')[2]} of the ranks", late.seconds, places)


def computed_tokens(parts: Sequence[Sequence[Minibatch]]) -> dict[str, float]:
    """Count the tokens of one pass over the batch, prompts and padding included."""
    computed = sum(micro.tokens for part in parts for micro in chain(*part))
    return {"tokens/computed": float(computed)}


def _trained(batch: Batch, answers: Sequence[RankAnswer]) -> tuple[TrainedSample, ...]:
    """Return the samples that a step used: all of the batch, unless `trainer.kl.stop` ended the update before."""
    passed = np.zeros(batch.tokens, bool)
    for answer in answers:
        passed[answer.places] = True
    passed |= not passed.any()  # a critic alone learnt, of all
    logprobs = scatter(answers, batch.tokens, lambda answer: answer.proximal_logprobs)
    entropies = scatter(answers, batch.tokens, lambda answer: answer.entropies)
    columns = (batch.per_sample(column) for column in (batch.advantages, logprobs, entropies, passed))
    return tuple(
        TrainedSample(ordinal=ordinal, sample=sample, advantages=own, proximal_logprobs=scored, entropies=spread)
        for (ordinal, sample), own, scored, spread, used in zip(batch.samples, *columns, strict=True)
        if used.all()
    )
