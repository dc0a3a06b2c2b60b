"""The interfaces (protocols) of all parts. Local, remote and fake parts implement the same protocol.

Every method that waits has its own deadline and raises a named error when it is exceeded; see `rlhf.errors`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rlhf.types import (
    Completion,
    EnvironmentSpec,
    Failed,
    Filtered,
    Group,
    Message,
    Observation,
    PolicyVersion,
    Prompt,
    Sampling,
    Scored,
    Task,
    Ticket,
    Trajectory,
    Unscored,
    Updated,
    Written,
)


class RolloutEngine(Protocol):
    """A policy that continues prompts.

    `generate` returns one reply with the log-probs of the distribution it was sampled from. `seed` determines all
    draws, so on a CPU the same request gives the same reply, independent of concurrent requests. `session` keeps the
    requests of one episode on one engine.
    """

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion: ...


class LocalEnvironment(Protocol):
    """An environment as users write it: plain methods, which may block. Single use: one `reset`, `step` until the
    observation is done, `close`. It may raise; its host turns the exception into `EnvironmentFailed`. Methods may also
    be `async`, all three of them (`AsyncEnvironment`).

    The same task and seed give the same first observation. The answer to an invalid action of the policy (an unknown
    tool, a word instead of a number) is an observation that explains it.
    """

    spec: EnvironmentSpec

    def reset(self, task: Task, *, seed: int) -> Observation: ...
    def step(self, action: Message) -> Observation: ...
    def close(self) -> None: ...


class Environment(Protocol):
    """One session of an environment, hosted here in a thread or a process, or on a server.

    Single use, as `LocalEnvironment`. Every method has its own deadline. Any failure is `EnvironmentFailed`, after
    which only `close` may be called, which never raises.
    """

    async def reset(self, task: Task, *, seed: int) -> Observation: ...
    async def step(self, action: Message) -> Observation: ...
    async def close(self) -> None: ...


class AsyncEnvironment(Environment, Protocol):
    """An environment as users write it, with `async` methods, which must not block; else as `LocalEnvironment`."""

    spec: EnvironmentSpec


class Environments(Protocol):
    """A source of sessions. `open` waits for a free slot, within its deadline."""

    spec: EnvironmentSpec

    async def open(self, session: str) -> Environment: ...


class RewardFunction(Protocol):
    """Scores a whole group at once, which pairwise judges need. Returns one result per trajectory, in order; a scorer's
    failure is `Unscored`, never an exception."""

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]: ...


class Rollout(Protocol):
    """Plays one whole group; tolerated failures are returned as data."""

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered | Failed: ...


class Updates(Protocol):
    """Trains on groups: `update` is all training on the groups of one `take()`."""

    async def update(self, groups: Sequence[Group]) -> Updated: ...


class Saves(Protocol):
    """Something that can be saved: a learner, whose ranks copy their parts, and write them while training continues.
    The answer returns the files."""

    async def snapshot(self, path: Path) -> Awaitable[Mapping[str, Written]]: ...


class WeightSync(Protocol):
    """`publish` returns when every engine samples from the learner's current weights, with their version."""

    async def publish(self) -> PolicyVersion: ...
