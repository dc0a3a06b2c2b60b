"""The verbs: what each part can be asked, whoever answers. Local, remote and fake parts satisfy the same protocol.

Every method that waits has a deadline inside it and raises a named error when it passes; see `rlhf.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    `generate` returns one reply with the log-probs of the distribution it was drawn from. `seed` decides every draw,
    so on a CPU the same request gives the same reply whatever runs beside it. `session` keeps the requests of one
    episode on one engine.
    """

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion: ...


class LocalEnvironment(Protocol):
    """An environment as people write one: plain methods, which may take their time. Single use: one `reset`, `step`
    until the observation is done, `close`. It may raise; whoever hosts it turns that into `EnvironmentFailed`.

    The same task and seed give the same first observation. An action of the policy that makes no sense (an unknown
    tool, a word where a number was asked for) is answered with an observation that says so.
    """

    spec: EnvironmentSpec

    def reset(self, task: Task, *, seed: int) -> Observation: ...
    def step(self, action: Message) -> Observation: ...
    def close(self) -> None: ...


class Environment(Protocol):
    """One session of an environment, wherever it runs: hosted here in a thread or a process, or behind a server.

    Single use, as `LocalEnvironment`. Every method has its deadline inside. Whatever breaks is `EnvironmentFailed`,
    after which the session is only good for `close`, which never raises.
    """

    async def reset(self, task: Task, *, seed: int) -> Observation: ...
    async def step(self, action: Message) -> Observation: ...
    async def close(self) -> None: ...


class Environments(Protocol):
    """Where sessions come from. `open` waits for a place, within its deadline."""

    spec: EnvironmentSpec

    async def open(self, session: str) -> Environment: ...


class RewardFunction(Protocol):
    """Scores a whole group at once, so that pairwise judges fit. One answer a trajectory, in order, never an exception
    for a scorer that broke: that is `Unscored`."""

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]: ...


class Rollout(Protocol):
    """Plays one whole group; faults that the system tolerates come back as data."""

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered | Failed: ...


class Learner(Protocol):
    """Turns groups into new weights. `update` is all learning on one `take()`; `save` answers with what was written
    below `path`, when it is on the disk."""

    async def update(self, groups: Sequence[Group]) -> Updated: ...
    async def save(self, path: Path) -> Mapping[str, Written]: ...
    async def load(self, path: Path) -> None: ...


class Saves(Protocol):
    """What is saved: a learner, whose ranks write and sync their parts and say what they wrote."""

    async def save(self, path: Path) -> Mapping[str, Written]: ...


class WeightSync(Protocol):
    """`publish` returns when every engine samples from the learner's weights, with their version."""

    async def publish(self) -> PolicyVersion: ...


class Buffer(Protocol):
    """Hands out the right to play groups, and hands the groups to the learner in order.

    Playing a group is `settle(await admit(), …)`; the learner does `take`, updates, syncs, `advance`. `settle` returns
    whether the group will be trained.
    """

    async def admit(self) -> Ticket: ...
    def settle(self, ticket: Ticket, outcome: Group | Filtered | Failed) -> bool: ...
    async def take(self) -> list[Group]: ...
    def advance(self, version: PolicyVersion) -> None: ...
