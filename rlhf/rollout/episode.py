"""Episode state, the episode-runner interface and the single-reply runner. Tokens are kept exactly as sampled."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rlhf.chat.renderer import ChatRenderer
from rlhf.errors import ModelError, RlhfError
from rlhf.protocols import RolloutEngine
from rlhf.rollout.history import History, history_of, reply_text
from rlhf.types import (
    Completion,
    EpisodeStatus,
    Failed,
    FinishReason,
    Message,
    Sampling,
    Task,
    Timings,
    Tool,
    Trajectory,
)

AGENT = "agent"
"""The role of a policy that plays alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyClient:
    """A policy with its engine, renderer and budgets. `seed_of(turn)` gives the sampling seed of a reply; in a run with
    several policies `policy_of(role)` names the one that plays a role."""

    engine: RolloutEngine
    renderer: ChatRenderer
    sampling: Sampling
    max_context_tokens: int
    session: str
    seed_of: Callable[[int], int]
    policy_of: Callable[[str], str] = lambda role: ""


class EpisodeRunner(Protocol):
    """A way to play an episode: `policy` plays a task, with one outcome for each of `roles`, in that order. The chat
    template receives `tools`, which the policy may call. All episodes of a group share the `seed`. Raises
    `GenerateFailed`, `DeadlinePassed` and `EnvironmentFailed`: such an episode is lost for all roles."""

    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def tools(self) -> tuple[Tool, ...]: ...
    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]: ...


class Unplayable(RlhfError):
    """No reply can be generated for this episode; `failed` says why."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.detail)
        self.failed = failed


@dataclass(slots=True, kw_only=True)
class EpisodeState:
    """An episode in progress, for one role."""

    task: Task
    history: History
    said: list[Message] = field(default_factory=list)
    role: str = AGENT
    policy: str = ""
    response: str = ""
    engine: str = ""
    generate_seconds: float = 0.0
    asked_at: float = 0.0
    malformed_calls: int = 0
    out_of_time: bool = False
    cut_reply: bool = False

    def room(self, policy: PolicyClient) -> int:
        """Return the maximum number of tokens of the next reply, given the context so far."""
        return min(policy.sampling.max_tokens, policy.max_context_tokens - len(self.history.context))

    def ask(self, policy: PolicyClient, turn: int) -> Awaitable[Completion]:
        """Ask for one reply to the whole context, within the budgets of turn and context; `receive` takes it."""
        self.asked_at = time.monotonic()
        return policy.engine.generate(
            replace(self.history.context.prompt, policy=self.policy),
            sampling=replace(policy.sampling, max_tokens=self.room(policy)),
            seed=policy.seed_of(turn),
            session=policy.session,
        )

    def receive(self, policy: PolicyClient, completion: Completion) -> None:
        self.generate_seconds += time.monotonic() - self.asked_at
        self.response = reply_text(policy.renderer, self.history.context, completion)
        self.history.context.append_reply(completion, len(self.said) or None)  # nothing is said without environment
        self.engine = completion.engine
        self.out_of_time = completion.finish_reason is FinishReason.TIME
        self.cut_reply = completion.finish_reason is FinishReason.LENGTH

    def record(
        self, status: EpisodeStatus, environment_seconds: float = 0.0, infos: Sequence[Mapping[str, Any]] = ()
    ) -> Trajectory:
        return Trajectory(
            task=self.task,
            segments=self.history.segments,
            status=status,
            response=self.response,
            engine=self.engine,
            timings=Timings(generate_seconds=self.generate_seconds, environment_seconds=environment_seconds),
            conversation=tuple(self.said),
            malformed_calls=self.malformed_calls,
            role=self.role,
            policy=self.policy,
            out_of_time=self.out_of_time,
            env_info=tuple(infos),
        )


class AnswerOnce:
    """Runner for tasks without an environment: the first reply ends the episode. A prompt that leaves no room for one
    is `Failed("prompt_too_long")`, one that cannot be rendered `Failed("template")`."""

    roles = (AGENT,)
    tools: tuple[Tool, ...] = ()

    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]:
        if task.tools:
            policy = replace(policy, renderer=policy.renderer.offering(task.tools))
        try:
            state = open_episode(task, policy, task.messages, None)
        except Unplayable as error:
            return (error.failed,)
        except ModelError as error:
            return (Failed(kind="template", detail=f"task {task.id}: {error}"),)
        completion = await state.ask(policy, turn=0)
        state.receive(policy, completion)
        if completion.finish_reason is not FinishReason.STOP:
            state.history.context.cut_off()
            return (state.record(EpisodeStatus.TRUNCATED),)
        state.history.context.end()
        return (state.record(EpisodeStatus.TERMINATED),)


def open_episode(
    task: Task, policy: PolicyClient, first: Sequence[Message], last_turns: int | None, role: str = AGENT
) -> EpisodeState:
    """Return the state of an episode that starts with these messages. Raises `Unplayable`, and `ModelError`."""
    history = history_of(policy.renderer, task.messages, first, last_turns)
    state = EpisodeState(task=task, history=history, role=role, policy=policy.policy_of(role))
    if state.room(policy) < 1:
        detail = f"{len(state.history.context)} prompt tokens in a context of {policy.max_context_tokens}"
        raise Unplayable(Failed(kind="prompt_too_long", detail=f"task {task.id}: {detail}"))
    return state
