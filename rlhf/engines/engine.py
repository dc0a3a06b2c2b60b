"""Client of a remote engine: many coroutines generate, and few calls carry their requests. Each `submit` sends the
requests that arrived during the last one, and each `collect` returns the replies that finished since the last, so the
number of calls does not grow with the number of samples.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf.cluster.worker import Worker, WorkerHandle
from rlhf.engines.config import RolloutConfig
from rlhf.engines.known_images import KnownImages
from rlhf.engines.vllm.engine_worker import Delivered, EngineWorker
from rlhf.engines.vllm.settings import CPU_SEQUENCES, EngineFacts, GenerateRequest
from rlhf.errors import DeadlinePassed, EngineBroken, GenerateFailed, RlhfError, WorkerDied, WorkerFailed
from rlhf.images import PlacedImage
from rlhf.types import Completion, FinishReason, PolicyVersion, Prompt, SampledTokens, Sampling, TokenLogprobs
from rlhf.weight_sync.types import Load, Manifest, Rendezvous, Seconds

R = TypeVar("R")

POLL_SECONDS = 1.0
"""How long one `collect` waits for a first reply."""
CALL_SECONDS = 30.0
"""Time added to the deadline of a call, for the round trip and one step of the model."""
SHORTEST_WAIT_SECONDS = 0.02
"""Minimum time between two checks of a wait that reaches its deadline during a pause."""
SETTLED_AT_ONCE = 8
"""Replies delivered in one turn of the event loop."""
BEAT_SECONDS = 2.0
"""Time between two checks that an engine's process runs."""
NOTHING = SampledTokens(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))


class PartialReply:
    """A reply that is not complete: the tokens of it that have arrived here. Another engine can continue after them."""

    def __init__(self) -> None:
        self._parts: list[SampledTokens] = []

    @property
    def sampled(self) -> SampledTokens:
        return SampledTokens(*map(np.concatenate, zip(*self._parts, strict=True))) if self._parts else NOTHING

    def add(self, part: SampledTokens) -> None:
        self._parts.append(part)


class RunningClock:
    """Counts the `seconds` that an engine has run: time paused for a weight sync does not count against a reply's
    deadline. A nested pause has no effect."""

    def __init__(self) -> None:
        self._began, self._paused_seconds = time.monotonic(), 0.0
        self._paused_at: float | None = None

    @property
    def seconds(self) -> float:
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._began - self._paused_seconds

    def pause(self) -> None:
        """Stop the clock; no effect if it is stopped already."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()

    def restart(self) -> None:
        """Restart the clock; no effect if it runs."""
        if self._paused_at is not None:
            self._paused_seconds += time.monotonic() - self._paused_at
            self._paused_at = None

    async def within(self, future: asyncio.Future[Any], seconds: float) -> bool:
        """Whether `future` is done before the clock advances by `seconds`; the future's result is not read. A pause
        ends within the deadlines of a weight sync, or with the run."""
        until = self.seconds + seconds
        while not future.done():
            left = until - self.seconds
            if left <= 0:
                return False
            await _done_or_late(future, max(left, SHORTEST_WAIT_SECONDS))
        return True


async def _done_or_late(future: asyncio.Future[Any], seconds: float) -> None:
    """`asyncio.wait` for one future, in two thirds of the time: every reply waits here."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    future.add_done_callback(wake)
    timer = loop.call_later(seconds, wake)
    try:
        await woken
    finally:
        timer.cancel()
        future.remove_done_callback(wake)


@dataclass(eq=False)
class _Pending:
    """A request in flight: `taken` is resolved when the engine has it, `reply` with a completion or a named error. The
    caller may be cancelled in the same tick: then both futures have no waiter. `partial` gets what arrives before."""

    session: str
    partial: PartialReply
    taken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reply: asyncio.Future[Completion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def take(self) -> None:
        if not self.taken.done():
            self.taken.set_result(None)

    def finish(self, completion: Completion) -> None:
        self.take()
        if not self.reply.done():
            self.reply.set_result(completion)

    def fail(self, error: BaseException) -> None:
        self.take()
        if not self.reply.done():
            self.reply.set_exception(error)


class RemoteEngine:
    """A `RolloutEngine` and a `PublishTarget` over a worker that runs an `EngineWorker`.

    A reply's deadline is `generate_timeout_seconds` from when the engine has the request; time paused for weight syncs
    does not count. A reply that exceeds it is cut off, and keeps the tokens sampled so far. `generate` raises
    `GenerateFailed` when only this request cannot be answered, `DeadlinePassed` when no token was sampled in that time,
    `EngineBroken` or `WorkerDied` when the engine can answer no further request: it is lost, and `until_lost` returns.
    """

    def __init__(
        self, worker: Worker, config: RolloutConfig, *, transfer_ranks: int = 1, policies: Sequence[str] = ("",)
    ) -> None:
        self.name, self.transfer_ranks, self.policies = worker.name, transfer_ranks, policies
        self.worker, self._config = worker, config
        self._worker = WorkerHandle[EngineWorker](worker)
        self._silence_seconds = config.silence_timeout_seconds
        self._lost: EngineBroken | WorkerDied | None = None
        self._noticed = asyncio.Event()
        self._start_seconds, self._generate_seconds = config.start_timeout_seconds, config.generate_timeout_seconds
        self._publish_seconds = config.weight_sync_timeout_seconds
        self.places, self.version = config.max_sequences or CPU_SEQUENCES, 0
        self._clock = RunningClock()
        self._ids = itertools.count()
        self._outbox: list[GenerateRequest] = []
        self._images = KnownImages()
        self._pending: dict[str, _Pending] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sending: asyncio.Task[None] | None = None
        self._collector: asyncio.Task[None] | None = None

    def follow(self, worker: Worker) -> RemoteEngine:
        """Return an engine of this one's size and policies in another worker, not started yet."""
        return RemoteEngine(worker, self._config, transfer_ranks=self.transfer_ranks, policies=self.policies)

    async def start(self) -> EngineFacts:
        """Load the model; returns the facts that the engine reports."""
        facts = await self._worker.call(lambda engine: engine.start(), timeout_seconds=self._start_seconds)
        self.places = facts.max_sequences
        return facts

    async def generate(
        self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str, partial: PartialReply | None = None
    ) -> Completion:
        """Return one reply; `seed` determines all its draws. It begins with the tokens of `partial`, which gets further
        ones as they arrive."""
        if self._lost:
            raise self._lost
        if partial is None or sampling.structure:  # a grammar begins with the reply, not in its middle
            partial = PartialReply()
        request_id, before = f"{session}/{next(self._ids)}", partial.sampled
        pending = self._pending[request_id] = _Pending(session, partial)
        self._outbox.append(
            GenerateRequest(
                request_id,
                np.concatenate([prompt.token_ids, before.token_ids]) if len(before.token_ids) else prompt.token_ids,
                sampling.temperature,
                sampling.max_tokens - len(before.token_ids),
                seed,
                sampled=len(before.token_ids),
                structure=sampling.structure,
                policy=prompt.policy,
                images=self._images.asked_about(prompt.images),
            )
        )
        asyncio.get_running_loop().call_soon(self._send)  # with those that come in this turn of the event loop
        seconds = min(self._generate_seconds, sampling.max_seconds or self._generate_seconds)
        try:
            await pending.taken
            if not await self._clock.within(pending.reply, seconds):
                # The engine returns the tokens sampled so far as the reply, unless it is complete already.
                await self._call(lambda engine: engine.cut_off([request_id]))
                await asyncio.wait((pending.reply,), timeout=CALL_SECONDS)
        finally:
            if self._pending.pop(request_id, None):
                self._spawn(self._call(lambda engine: engine.abort([request_id])))
        completion = _after(before, pending.reply.result()) if pending.reply.done() else None
        if completion is None or (completion.finish_reason is FinishReason.TIME and not len(completion.token_ids)):
            raise DeadlinePassed(f"{self.name} (session {session})", seconds)
        return completion

    async def token_logprobs(
        self, token_ids: NDArray[np.int32], policy: str = "", images: Sequence[PlacedImage] = ()
    ) -> TokenLogprobs:
        """Return log-probs of given tokens at temperature 1, each row with the same images."""
        return await self._call(lambda engine: engine.token_logprobs(token_ids, policy, images))

    async def extend(self, token_ids: NDArray[np.int32], tokens: int, policy: str = "") -> Completion:
        """Sample `tokens` more tokens after `token_ids`, at temperature 1."""
        return await self._call(lambda engine: engine.extend(token_ids, tokens, policy))

    async def connect(self, rendezvous: Rendezvous, first_rank: int) -> None:
        """Join the transfer group; this engine's ranks start at `first_rank`."""
        await self._phase(lambda engine: engine.connect(rendezvous, first_rank))

    async def sleep(self) -> None:
        """Pause sampling and release the engine's memory until the next weight sync."""
        self._clock.pause()
        await self._phase(lambda engine: engine.sleep())

    async def prepare(self, manifest: Manifest) -> Load:
        """Pause sampling and acknowledge the manifest; requests in flight are kept. Returns the load since the last
        call."""
        self._clock.pause()
        return await self._phase(lambda engine: engine.prepare(manifest))

    async def receive(self, manifest: Manifest) -> Seconds:
        """Receive the tensors while the learner sends them."""
        return await self._phase(lambda engine: engine.receive(manifest))

    async def commit(self, version: PolicyVersion) -> None:
        """Stamp tokens sampled from here on with `version`."""
        await self._phase(lambda engine: engine.commit(version))
        self.version = version

    async def resume(self) -> None:
        await self._phase(lambda engine: engine.resume())
        self._clock.restart()

    def lose(self, error: RlhfError) -> None:
        """Take the engine out of service: all its requests fail, now and from now on."""
        if not isinstance(error, (EngineBroken, WorkerDied)):
            error = EngineBroken(self.name, str(error))
        self._lost = self._lost or error
        self._noticed.set()
        self._fail(self._lost)

    async def until_lost(self) -> EngineBroken | WorkerDied:
        """Wait until the engine is lost, and return why: its process ended or does not answer, or it broke."""
        watching = [asyncio.ensure_future(one) for one in (self._noticed.wait(), self._died(), self._silent())]
        try:
            await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in watching:
                task.cancel()
        assert self._lost is not None, "each of them sets it"
        return self._lost

    async def _died(self) -> None:
        self.lose(await self.worker.until_death())

    async def _silent(self) -> None:
        """Return once the process has not answered for its time limit."""
        while True:
            try:
                await self._worker.call(lambda engine: engine.beat(), timeout_seconds=self._silence_seconds)
            except DeadlinePassed:
                seconds = self._silence_seconds
                return self.lose(WorkerDied(self.name, f"its process has not answered for {seconds:g} s"))
            except RlhfError as error:
                return self.lose(error)
            await asyncio.sleep(BEAT_SECONDS)

    async def stop(self) -> None:
        """Abort all requests in flight and free the model."""
        self._fail(EngineBroken(self.name, "it was stopped"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._worker.call(lambda engine: engine.close(), timeout_seconds=CALL_SECONDS)

    def _phase(self, ask: Callable[[EngineWorker], R]) -> Coroutine[Any, Any, R]:
        return self._worker.call(ask, timeout_seconds=self._publish_seconds)

    def _send(self) -> None:
        """Send the waiting requests, once the worker has those before them."""
        if self._sending is not None:
            return
        batch, self._outbox = [request for request in self._outbox if request.id in self._pending], []
        if batch:
            new, forgotten = self._images.sent_with(batch)
            self._sending = self._spawn(self._call(lambda engine: engine.submit(batch, new, forgotten)))
            self._sending.add_done_callback(lambda _: self._sent(batch))

    def _sent(self, batch: Sequence[GenerateRequest]) -> None:
        """Make sure that a collector waits for the replies of requests that have arrived. A call that failed has failed
        all requests."""
        self._sending = None
        for request in batch:
            if pending := self._pending.get(request.id):
                pending.take()
        if self._pending and (self._collector is None or self._collector.done()):
            self._collector = self._spawn(self._collect())
        self._send()

    async def _collect(self) -> None:
        while self._pending:
            replies = await self._call(lambda engine: engine.collect(POLL_SECONDS))
            for first in range(0, len(replies), SETTLED_AT_ONCE):
                for request_id, reply in replies[first : first + SETTLED_AT_ONCE]:
                    self._settle(request_id, reply)
                await asyncio.sleep(0)

    def _call(self, ask: Callable[[EngineWorker], R]) -> Coroutine[Any, Any, R]:
        """Call the worker; the deadline allows for a concurrent weight sync."""
        return self._worker.call(ask, timeout_seconds=self._publish_seconds + CALL_SECONDS)

    def _settle(self, request_id: str, reply: Delivered) -> None:
        if isinstance(reply, SampledTokens):
            if unfinished := self._pending.get(request_id):
                unfinished.partial.add(reply)
            return
        pending = self._pending.pop(request_id, None)
        if pending is None:
            return
        if isinstance(reply, Completion):
            pending.finish(reply)
        elif reply.broken:
            pending.fail(EngineBroken(self.name, reply.detail))
            self.lose(EngineBroken(self.name, reply.detail))
        else:
            pending.fail(GenerateFailed(self.name, pending.session, reply.detail))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # In its own context: the call serves many episodes and belongs to no single trace.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all pending requests if the call failed: none of them would be answered."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            if isinstance(error, (WorkerDied, WorkerFailed)):
                self.lose(error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        lost, self._pending = self._pending, {}
        for pending in lost.values():
            pending.fail(error)


def _after(before: SampledTokens, completion: Completion) -> Completion:
    """Return the whole reply, of which an engine sampled the rest."""
    if not len(before.token_ids):
        return completion
    return replace(
        completion,
        token_ids=np.concatenate([before.token_ids, completion.token_ids]),
        behaviour_logprobs=np.concatenate([before.behaviour_logprobs, completion.behaviour_logprobs]),
        versions=np.concatenate([before.versions, completion.versions]),
    )
