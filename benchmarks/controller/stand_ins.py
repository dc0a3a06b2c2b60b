"""Workers without a model, in the controller's process: engines that sleep for a while and answer with made replies,
ranks that answer at once, and an environment that says what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.engines.vllm.settings import EngineFacts, GenerateRequest
from rlhf.errors import WorkerDied
from rlhf.trainer.batching.batch import Minibatch, places_of
from rlhf.trainer.rank_answers import RankAnswer
from rlhf.trainer.settings import UpdateArguments
from rlhf.types import Completion, EnvironmentSpec, FinishReason, Message, Observation, PolicyVersion, Task

CONTEXT, VOCABULARY = 1 << 20, 320
ROUND_TRIP_SECONDS = 0.001
END = 2
"""The byte tokenizer's end of a turn."""
LETTERS = (68, 69)
"""Tokens of two letters: of a group's replies some have one and some the other."""


class StandIn:
    """A `Worker` whose methods are its own coroutines."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        await asyncio.sleep(ROUND_TRIP_SECONDS)
        return await getattr(self, method.rpartition(".")[2])(*args, **kwargs)

    async def until_death(self) -> WorkerDied:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class SleepingEngine(StandIn):
    """Replies `seconds` after a request with as many tokens as it may have."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(name)
        self.version: PolicyVersion = 0
        self.taken = 0
        self._seconds = seconds
        self._done: list[tuple[str, Completion]] = []
        self._some = asyncio.Event()

    async def start(self) -> EngineFacts:
        return EngineFacts(CONTEXT, VOCABULARY, "none", 0.0, 1 << 20)

    async def submit(self, requests: Sequence[GenerateRequest]) -> None:
        self.taken += len(requests)
        asyncio.get_running_loop().call_later(self._seconds, self._finish, requests)

    async def collect(self, timeout_seconds: float) -> list[tuple[str, Completion]]:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._some.wait()
        self._some.clear()
        done, self._done = self._done, []
        return done

    async def abort(self, ids: Sequence[str]) -> None: ...

    async def close(self) -> None: ...

    def _finish(self, requests: Sequence[GenerateRequest]) -> None:
        self._done += [(request.id, self._reply(request)) for request in requests]
        self._some.set()

    def _reply(self, request: GenerateRequest) -> Completion:
        token_ids, logprobs = sampled(request.max_tokens, LETTERS[request.seed % 2])
        return Completion(
            token_ids=token_ids,
            behaviour_logprobs=logprobs,
            versions=np.full(len(token_ids), self.version, np.int32),
            finish_reason=FinishReason.STOP,
            engine=self.name,
        )


@cache
def sampled(tokens: int, letter: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return a reply of one letter, with log-probs that hardly compress."""
    logprobs = -np.random.default_rng(letter).gamma(0.5, 1, tokens).astype(np.float32)
    return np.array([*[letter] * (tokens - 1), END], np.int32), logprobs


class AnsweringRank(StandIn):
    """A rank whose optimizer step takes no time."""

    async def update(self, part: Sequence[Minibatch], columns: Any, arguments: UpdateArguments) -> RankAnswer:
        places = places_of(part)
        column = np.resize(sampled(4096, LETTERS[0])[1], len(places))
        return RankAnswer(sums={}, maxima={}, steps={}, places=places, proximal_logprobs=column, entropies=-column)


class PublishedAtOnce:
    """A `WeightSync` that only tells the engines their version."""

    def __init__(self, learner: Any, engines: Sequence[SleepingEngine]) -> None:
        self._learner, self._engines = learner, engines

    async def publish(self) -> PolicyVersion:
        for engine in self._engines:
            engine.version = self._learner.version
        return engine.version


class Turns:
    """Says what was said, and ends after its number of turns. Each is rewarded with the length of what was said."""

    def __init__(self, turns: int) -> None:
        self.spec = EnvironmentSpec(name="turns", description="Says what was said.")
        self._left = turns

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return Observation(messages=task.messages)

    async def step(self, action: Message) -> Observation:
        self._left -= 1
        said = Message(role="user", content=action.content)
        return Observation(messages=(said,), reward=float(len(action.content)), terminated=not self._left)

    async def close(self) -> None: ...
