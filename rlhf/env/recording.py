"""Record environments to a file and replay them: every session's requests with their answers, replayed without the
environment.

A line of the file is one request of one session: `session` and `opening` (how many sessions of that name were opened
before: an evaluation plays its problems again), `method`, the `request`, and its `answer` or `failure`. The first line
is the spec. Nothing else is written: neither addresses nor tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from rlhf.env.answers import Undecodable
from rlhf.env.encoding import (
    action_data,
    answer_data,
    dumps,
    observation_from,
    spec_data,
    spec_from,
    task_data,
)
from rlhf.env.wire import Json
from rlhf.errors import EnvironmentFailed, RecordingError
from rlhf.protocols import Environment, Environments
from rlhf.runs.durable import private
from rlhf.types import EnvironmentSpec, Message, Observation, Task

Key = tuple[str, int]
"""A session's name, and the number of times it was opened before."""


GIVEN_UP = "given_up"
"""An additional failure kind: the episode stopped waiting at its timeout."""


class RecordedEnvironments:
    """Records the sessions of `inner` as they are played. Raises `RecordingError` for a file that exists already."""

    def __init__(self, inner: Environments, path: Path) -> None:
        self.spec, self._inner, self._openings = inner.spec, inner, Counter[str]()
        try:
            self._file = open(path, "x", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror}; name another recording.path") from None
        self._write({"spec": spec_data(inner.spec)})

    async def open(self, session: str) -> Environment:
        opening = self._openings[session]
        self._openings[session] += 1
        line = {"session": session, "opening": opening, "method": "open", "request": {}}
        environment: Environment = await self.noted(line, self._inner.open(session))
        return RecordedEnvironment(self, (session, opening), environment)

    async def noted(self, line: Json, asked: Coroutine[Any, Any, Any]) -> Any:
        """Await the answer and write request and answer as one line. Raises what the request raises."""
        try:
            said = await asked
        except EnvironmentFailed as error:
            self.failed(line, error.kind, error.detail)
            raise
        self._write(line | ({"answer": answer_data(said)} if isinstance(said, Observation) else {}))
        return said

    def failed(self, line: Json, kind: str, detail: str) -> None:
        """Write the request with its failure."""
        self._write(line | {"failure": {"kind": kind, "detail": detail}})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: Json) -> None:
        if not self._file.closed:  # an episode may still run after another one ended the run
            self._file.write(dumps(line) + "\n")
            self._file.flush()


class RecordedEnvironment:
    """One recorded session."""

    def __init__(self, recording: RecordedEnvironments, key: Key, inner: Environment) -> None:
        self._recording, self._key, self._inner = recording, key, inner
        self._given_up: Json | None = None

    async def reset(self, task: Task, *, seed: int) -> Observation:
        line = recorded_line(self._key, "reset", reset_request(task, seed))
        return await self._noted(line, self._inner.reset(task, seed=seed))

    async def step(self, action: Message) -> Observation:
        line = recorded_line(self._key, "step", action_data(action))
        return await self._noted(line, self._inner.step(action))

    async def close(self) -> None:
        """Record a request that was given up at the episode's timeout, and close. A request that was cancelled with the
        whole episode, at the end of the run, is not recorded."""
        closing = asyncio.current_task()
        if self._given_up and closing is not None and not closing.cancelling():
            self._recording.failed(self._given_up, GIVEN_UP, "the episode had waited too long for its environment")
        await self._inner.close()

    async def _noted(self, line: Json, asked: Coroutine[Any, Any, Observation]) -> Observation:
        try:
            said: Observation = await self._recording.noted(line, asked)
        except asyncio.CancelledError:
            self._given_up = line
            raise
        return said


class ReplayedEnvironments:
    """Replays the sessions of a file: each gives its recorded answers, in the recorded order of requests.

    Raises `RecordingError` for a file that is no recording, and for a request that is not the next one recorded.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._openings = path, Counter[str]()
        self._lines: dict[Key, deque[Json]] = defaultdict(deque)
        self.spec: EnvironmentSpec = self._read()

    async def open(self, session: str) -> Environment:
        key = (session, self._openings[session])
        self._openings[session] += 1
        self.next_line(recorded_line(key, "open", {}))
        return ReplayedEnvironment(self, key)

    def next_line(self, asked: Json) -> Json:
        """The recorded line for the request. Raises `EnvironmentFailed` where it failed, `TimeoutError` where the
        episode's time was over, and `RecordingError`."""
        waiting = self._lines[asked["session"], asked["opening"]]
        if not waiting or any(waiting[0][name] != asked[name] for name in ("method", "request")):
            recorded = f"it has {dumps(waiting[0]['request']):.200} there" if waiting else "it has nothing more"
            raise RecordingError(
                f"{self._path} has no answer to {asked['method']} {dumps(asked['request']):.200} of session "
                f"{asked['session']}: {recorded}; the run asks something else than the recorded one did: record again"
            )
        line = waiting.popleft()
        if failure := line.get("failure"):
            if failure["kind"] == GIVEN_UP:
                raise TimeoutError(failure["detail"])
            raise EnvironmentFailed(self.spec.name, failure["kind"], failure["detail"])
        return line

    def observation(self, asked: Json) -> Observation:
        """The recorded observation for the request."""
        line = self.next_line(asked)
        try:
            return observation_from(line["answer"])
        except (KeyError, Undecodable) as error:
            raise self._damaged(error) from None

    def _read(self) -> EnvironmentSpec:
        """Read all lines, by session; returns the spec. Raises `RecordingError`."""
        try:
            first, *lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").split("\n") if line]
            for line in lines:
                self._lines[line["session"], line["opening"]].append(line)
            return spec_from(first["spec"])
        except OSError as error:
            raise RecordingError(f"{self._path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:  # what cannot be decoded is a ValueError too
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> RecordingError:
        return RecordingError(f"{self._path} is not a recording of environments: {error}; record it again")


class ReplayedEnvironment:
    """One replayed session."""

    def __init__(self, recording: ReplayedEnvironments, key: Key) -> None:
        self._recording, self._key = recording, key

    async def reset(self, task: Task, *, seed: int) -> Observation:
        return self._recording.observation(recorded_line(self._key, "reset", reset_request(task, seed)))

    async def step(self, action: Message) -> Observation:
        return self._recording.observation(recorded_line(self._key, "step", action_data(action)))

    async def close(self) -> None: ...


def recorded_line(key: Key, method: str, request: Json) -> Json:
    """The fields of a line that identify its request."""
    return {"session": key[0], "opening": key[1], "method": method, "request": as_written(request)}


def reset_request(task: Task, seed: int) -> Json:
    """The recorded form of a reset."""
    return {"task": task_data(task), "seed": seed}


def as_written(request: Json) -> Json:
    """The request as read back from a file: tuples become lists."""
    read: Json = json.loads(dumps(request))
    return read
