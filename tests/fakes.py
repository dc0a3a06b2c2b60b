"""Parts without weight: they satisfy the protocols, say what they were asked, and fail where they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.tool_calls import ParsedReply
from rlhf.data.learnability import TaskChoices
from rlhf.tracing import Clock, CurrentSpan, SpanIds
from rlhf.types import (
    Completion,
    Failed,
    Filtered,
    FinishReason,
    Group,
    Message,
    PolicyVersion,
    Prompt,
    Sampling,
    Scored,
    Task,
    Ticket,
    Trajectory,
    Unscored,
    Updated,
)

TASK = Task(id="task", messages=(Message(role="user", content="52"),), answer="25", row={"question": "52"})


class FakeEngine:
    """Replies with the request's seed modulo 7 as a token, then a stop; `fail` may raise for a session."""

    def __init__(self, fail: Callable[[str], None] = lambda session: None) -> None:
        self.fail = fail
        self.asked: list[tuple[str, Sampling, int]] = []

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        self.asked.append((session, sampling, seed))
        await asyncio.sleep(0)
        self.fail(session)
        tokens = np.array([3 + seed % 7, 2][: sampling.max_tokens], np.int32)
        reason = FinishReason.STOP if tokens[-1] == 2 else FinishReason.LENGTH
        return Completion(
            token_ids=tokens,
            behaviour_logprobs=np.full(len(tokens), -0.5, np.float32),
            versions=np.zeros(len(tokens), np.int32),
            finish_reason=reason,
            engine="fake",
        )


class FakeRenderer:
    """A prompt of three tokens, and two more after a reply; text is the numbers of the tokens."""

    features_of = None

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        return Prompt(token_ids=np.array([7, 8, 9], np.int32))

    def increment(self, messages: Sequence[Message], last: int) -> Prompt:
        return Prompt(token_ids=np.array([5, 6], np.int32))

    def marked_text(self, token_ids: NDArray[np.int32]) -> str:
        return self.text(token_ids)

    def parsed(self, text: str, before: NDArray[np.int32]) -> ParsedReply:
        return ParsedReply()

    def whole_text(self, token_ids: NDArray[np.int32]) -> str:
        return self.text(token_ids)

    def text(self, token_ids: NDArray[np.int32]) -> str:
        return " ".join(map(str, token_ids.tolist()))


class FakeReward:
    """Gives the rewards it was made with, in order; None is a scorer that broke."""

    def __init__(self, *values: float | None) -> None:
        self.values = values

    async def __call__(self, task: Task, trajectories: Sequence[Trajectory]) -> list[Scored | Unscored]:
        return [
            Unscored(kind="raised") if value is None else Scored(value=value)
            for value, _ in zip(self.values, trajectories, strict=False)
        ]


class FakeRollout:
    """Plays a group of no samples after some turns of the event loop."""

    def __init__(self, turns: Callable[[Ticket], int] = lambda ticket: 1) -> None:
        self.turns = turns
        self.played: list[tuple[Task, Ticket]] = []

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered | Failed:
        self.played.append((task, ticket))
        for _ in range(self.turns(ticket)):
            await asyncio.sleep(0)
        return Group(ticket=ticket, task=task, samples=())


class FakeLearner:
    """Counts its updates, and is the source of versions."""

    def __init__(self) -> None:
        self.version: PolicyVersion = 0
        self.updates: list[list[int]] = []

    async def update(self, groups: Sequence[Group]) -> Updated:
        await asyncio.sleep(0)
        self.updates.append([group.ticket.ordinal for group in groups])
        self.version += 1
        return Updated(metrics={}, samples=())

    async def publish(self) -> PolicyVersion:
        await asyncio.sleep(0)
        return self.version

    async def snapshot(self, path: Path) -> Any: ...

    async def load(self, path: Path) -> None: ...


def exporting_to(ended: list[Any], ids: SpanIds | None = None) -> CurrentSpan:
    """A current span whose clock puts the arguments of its export into `ended`."""
    clock = Clock()
    clock.export = lambda *span: ended.append(span)
    return CurrentSpan(clock, ids)


class FakeTasks:
    """Task n has n as its id."""

    def __getitem__(self, ordinal: int) -> Task:
        return Task(id=str(ordinal), messages=())

    def settled(self, ordinal: int, outcome: Group | Filtered | Failed) -> None: ...

    def advance(self, trained: int) -> None: ...

    def choices(self, trained: int) -> TaskChoices:
        return TaskChoices()
