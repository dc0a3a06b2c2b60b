"""Engines, ranks and an environment that sleep for as long as was drawn, and record it."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.controller.stand_ins import CONTEXT, VOCABULARY, AnsweringRank, SleepingEngine, Turns
from rlhf.engines.vllm.settings import EngineFacts, GenerateRequest
from rlhf.protocols import Environment
from rlhf.trainer.batching.batch import Minibatch
from rlhf.trainer.rank_answers import RankAnswer
from rlhf.trainer.settings import UpdateArguments
from rlhf.types import Completion, EnvironmentSpec, Message, Observation, PolicyVersion, TokenLogprobs
from rlhf.weight_sync.types import GroupAddress, Load, Manifest, Seconds

SIGMA = 1.0
LONGEST = 224 / 36
"""Of the replies of `end_to_end`, over their mean."""
SLOW_SHARE, SLOW_FACTOR = 0.01, 50.0


@dataclass(frozen=True, kw_only=True)
class SyncSeconds:
    """How long the parts of a weight sync take."""

    transfer: float
    commit: float
    canary: float


def equal(seed: str) -> float:
    return 1.0


def lognormal(seed: str) -> float:
    """Draw a length with a mean of about 1 and a long tail."""
    return min(random.Random(seed).lognormvariate(-(SIGMA**2) / 2, SIGMA), LONGEST)


def one_in_a_hundred(seed: str) -> float:
    return SLOW_FACTOR if random.Random(seed).random() < SLOW_SHARE else 1.0


class DrawnEngine(SleepingEngine):
    """Has `places` for requests, each of which takes a drawn multiple of `seconds`. Between `prepare` and `resume` it
    samples nothing. `worked` are the seconds of every session."""

    def __init__(
        self, name: str, seconds: float, drawn: Callable[[str], float], places: int, sync: SyncSeconds
    ) -> None:
        super().__init__(name, seconds)
        self.worked: defaultdict[str, float] = defaultdict(float)
        self.stood_still = 0.0
        self._drawn, self._places, self._sync = drawn, places, sync
        self._samples, self._stands = asyncio.Event(), asyncio.Event()
        self._since = time.monotonic()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> EngineFacts:
        return EngineFacts(CONTEXT, VOCABULARY, "none", 0.0, self._places)

    async def submit(self, requests: Sequence[GenerateRequest]) -> None:
        for request in requests:
            self._tasks.add(task := asyncio.create_task(self._sample(request)))
            task.add_done_callback(self._tasks.discard)

    async def connect(self, *_: Any) -> None: ...

    async def prepare(self, manifest: Manifest) -> Load:
        self._stop()
        return {}

    async def receive(self, manifest: Manifest) -> Seconds:
        await asyncio.sleep(self._sync.transfer)
        return {"receive": self._sync.transfer}

    async def commit(self, version: PolicyVersion) -> None:
        self._stop()
        await asyncio.sleep(self._sync.commit)
        self.version = version

    async def token_logprobs(self, token_ids: Any, policy: str = "", images: Any = ()) -> TokenLogprobs:
        await asyncio.sleep(self._sync.canary)
        return TokenLogprobs(np.zeros((*token_ids.shape[:-1], token_ids.shape[-1] - 1), np.float32), None)

    async def extend(self, token_ids: Any, tokens: int) -> Completion:
        reply = self._reply(GenerateRequest("extend", token_ids, 1.0, tokens, 0))
        return replace(reply, behaviour_logprobs=np.zeros(tokens, np.float32))

    async def resume(self) -> None:
        if not self._samples.is_set():
            self.stood_still += time.monotonic() - self._since
        self._samples.set()
        self._stands.clear()

    def _stop(self) -> None:
        if self._samples.is_set():
            self._since = time.monotonic()
        self._samples.clear()
        self._stands.set()

    async def _sample(self, request: GenerateRequest) -> None:
        session = request.id.rpartition("/")[0]
        left = seconds = self._seconds * self._drawn(f"reply {request.seed}")
        while left > 0:
            await self._samples.wait()
            began = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._stands.wait()
            left -= time.monotonic() - began
        self.worked[session] += seconds
        self._finish([request])


class TrainingRank(AnsweringRank):
    """A rank whose update takes `seconds`."""

    def __init__(self, name: str, seconds: float, sync: SyncSeconds) -> None:
        super().__init__(name)
        self.trained: list[float] = []
        self._seconds, self._sync = seconds, sync

    async def update(self, part: Sequence[Minibatch], columns: Any, arguments: UpdateArguments) -> RankAnswer:
        await asyncio.sleep(self._seconds)
        self.trained.append(self._seconds)
        return await super().update(part, columns, arguments)

    async def group_address(self, *_: Any) -> GroupAddress:
        return GroupAddress(host="stand-in", port=1)

    async def connect(self, *_: Any) -> None: ...

    async def manifest(self) -> Manifest:
        return Manifest(tensors=())

    async def send(self) -> Seconds:
        await asyncio.sleep(self._sync.transfer)
        return {"send": self._sync.transfer}

    async def token_logprobs(self, rows: Any, *_: Any, rounded: bool = False) -> Any:
        await asyncio.sleep(self._sync.canary)
        return np.zeros((len(rows), rows.shape[1] - 1), np.float32)


class SlowCalls:
    """Sessions whose calls take `seconds`, and one in a hundred `SLOW_FACTOR` times as long."""

    spec = EnvironmentSpec(name="slow calls", description="Says what was said.")

    def __init__(self, turns: int, seconds: float) -> None:
        self.turns, self.seconds = turns, seconds

    async def open(self, session: str) -> Environment:
        return SlowSession(self, session)


class SlowSession(Turns):
    def __init__(self, calls: SlowCalls, session: str) -> None:
        super().__init__(calls.turns)
        self._calls, self._session = calls, session

    async def step(self, action: Message) -> Observation:
        await asyncio.sleep(self._calls.seconds * one_in_a_hundred(f"{self._session} {self._left}"))
        return await super().step(action)
