"""Record the sessions of environments to a file, and replay them without the environment. A request has the name of its
session, the number of earlier sessions of that name, its turn, method and arguments."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from rlhf.env.encoding import action_data, answer_data, observation_from, spec_data, spec_from, task_data
from rlhf.env.wire import Json, Undecodable
from rlhf.errors import EnvironmentFailed, RecordingError
from rlhf.http.recording import RecordedFailure, Recorder, Replay
from rlhf.protocols import Environment, Environments
from rlhf.types import Message, Observation, Task

GIVEN_UP = "given_up"
"""An additional kind of failure: the episode stopped waiting at its time limit."""
SPEC: Json = {"method": "spec"}


class SessionRequests:
    """Numbers the requests of one session."""

    def __init__(self, session: str, opening: int) -> None:
        self._key, self._turn = {"session": session, "opening": opening}, 0

    def open(self) -> Json:
        return {**self._key, "method": "open"}

    def reset(self, task: Task, seed: int) -> Json:
        return {**self._key, "turn": 0, "method": "reset", "task": task_data(task), "seed": seed}

    def step(self, action: Message) -> Json:
        self._turn += 1
        return {**self._key, "turn": self._turn, "method": "step", "action": action_data(action)}


class RecordedEnvironments:
    """Records the sessions of `inner` as they are played."""

    def __init__(self, inner: Environments, recorder: Recorder) -> None:
        self.spec, self._inner, self._recorder, self._openings = inner.spec, inner, recorder, Counter[str]()
        recorder.answered(SPEC, spec_data(inner.spec))

    async def open(self, session: str) -> Environment:
        requests = SessionRequests(session, self._openings[session])
        self._openings[session] += 1
        try:
            environment = await self._inner.open(session)
        except EnvironmentFailed as error:
            self._recorder.failed(requests.open(), error.kind, error.detail)
            raise
        self._recorder.answered(requests.open(), None)
        return RecordedEnvironment(self._recorder, requests, environment)


class RecordedEnvironment:
    def __init__(self, recorder: Recorder, requests: SessionRequests, inner: Environment) -> None:
        self._recorder, self._requests, self._inner = recorder, requests, inner
        self._cancelled: Json | None = None

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return await self._recorded(self._requests.reset(task, seed), self._inner.reset(task, seed=seed))

    async def step(self, action: Message) -> Observation:
        return await self._recorded(self._requests.step(action), self._inner.step(action))

    async def close(self) -> None:
        """Record a request that was cancelled at the episode's time limit, not with the whole episode, and close."""
        closing = asyncio.current_task()
        if self._cancelled and closing is not None and not closing.cancelling():
            self._recorder.failed(self._cancelled, GIVEN_UP, "the episode had waited too long for its environment")
        await self._inner.close()

    async def _recorded(self, request: Json, call: Coroutine[Any, Any, Observation]) -> Observation:
        try:
            observation = await call
        except EnvironmentFailed as error:
            self._recorder.failed(request, error.kind, error.detail)
            raise
        except asyncio.CancelledError:
            self._cancelled = request
            raise
        self._recorder.answered(request, answer_data(observation))
        return observation


class ReplayedEnvironments:
    """Replays the sessions of a recording. Raises `RecordingError` for a request that was not recorded."""

    def __init__(self, replay: Replay) -> None:
        self._replay, self._openings = replay, Counter[str]()
        try:
            self.spec = spec_from(replay.answer(SPEC))
        except (RecordedFailure, Undecodable) as error:
            raise RecordingError(f"this is not a recording of an environment: {error}; record it again") from None

    async def open(self, session: str) -> Environment:
        requests = SessionRequests(session, self._openings[session])
        self._openings[session] += 1
        recorded_answer(self._replay, requests.open(), self.spec.name)
        return ReplayedEnvironment(self._replay, requests, self.spec.name)


class ReplayedEnvironment:
    def __init__(self, replay: Replay, requests: SessionRequests, name: str) -> None:
        self._replay, self._requests, self._name = replay, requests, name

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return observation_from(recorded_answer(self._replay, self._requests.reset(task, seed), self._name))

    async def step(self, action: Message) -> Observation:
        return observation_from(recorded_answer(self._replay, self._requests.step(action), self._name))

    async def close(self) -> None: ...


def recorded_answer(replay: Replay, request: Json, name: str) -> Any:
    """Return the recorded answer. Raises `EnvironmentFailed`, `TimeoutError` and `RecordingError`."""
    try:
        return replay.answer(request)
    except RecordedFailure as failure:
        if failure.kind == GIVEN_UP:
            raise TimeoutError(failure.detail) from None
        raise EnvironmentFailed(name, failure.kind, failure.detail) from None
