"""One episode: policy and environment take turns, and every token is kept as it was sampled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rlhf.errors import ModelError
from rlhf.protocols import Environment, RolloutEngine
from rlhf.rollout.history import History, Renderer, history_of
from rlhf.rollout.seat import Seat
from rlhf.rollout.tool_calls import Spoken, ToolFormat, plain
from rlhf.types import (
    Completion,
    Failed,
    FinishReason,
    Message,
    Observation,
    Prompt,
    Sampling,
    Status,
    Task,
    Timings,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Who plays, and with what budgets. `seed_of(turn)` decides the draws of a reply."""

    engine: RolloutEngine
    renderer: Renderer
    sampling: Sampling
    max_context_tokens: int
    session: str
    seed_of: Callable[[int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How turns are taken with an environment of that name.

    `timeout_seconds` is for all waiting for it in one episode; `last_turns` is how many turns the policy sees, None
    is all of them; `read` finds the tool calls in a reply.
    """

    environment: str
    max_turns: int
    timeout_seconds: float
    last_turns: int | None = None
    read: ToolFormat = plain


@dataclass(slots=True, kw_only=True)
class Course:
    """What an episode has come to so far."""

    task: Task
    history: History
    said: list[Message] = field(default_factory=list)
    response: str = ""
    engine: str = ""
    generate_seconds: float = 0.0
    malformed_calls: int = 0

    def record(self, status: Status, environment_seconds: float = 0.0) -> Trajectory:
        """The episode as it ended."""
        return Trajectory(
            task=self.task,
            segments=self.history.segments,
            status=status,
            response=self.response,
            engine=self.engine,
            timings=Timings(generate_seconds=self.generate_seconds, environment_seconds=environment_seconds),
            conversation=tuple(self.said),
            malformed_calls=self.malformed_calls,
        )


async def answer_once(task: Task, policy: Policy) -> Trajectory | Failed:
    """The episode of a task without an environment: its messages are asked, and the first reply ends it.

    A prompt that leaves no room for a reply is `Failed("prompt_too_long")`. Raises what the engine raises.
    """
    course = Course(task=task, history=history_of(policy.renderer, task.messages, None))
    if _room(course, policy) < 1:
        return _too_long(course, policy)
    completion = await _say(course, policy, turn=0)
    if completion.finish_reason is not FinishReason.STOP:
        course.history.context.cut_off()
        return course.record(Status.TRUNCATED)
    course.history.context.judge(None, terminated=True)
    return course.record(Status.TERMINATED)


async def play(task: Task, policy: Policy, environment: Environment, *, seed: int, rules: Rules) -> Trajectory | Failed:
    """The episode of a task with an environment, which is reset with `seed` and closed by whoever opened it.

    As `answer_once`; a chat template that cannot say what the environment says is `Failed("template")`. Raises what
    engine and environment raise, and `EnvironmentFailed` when it is waited for too long.
    """
    seat = Seat(environment, rules.environment, rules.timeout_seconds)
    first = (await seat.reset(task, seed)).messages
    try:
        history = history_of(policy.renderer, first, rules.last_turns)
        course = Course(task=task, history=history, said=list(first))
        if _room(course, policy) < 1:
            return _too_long(course, policy)
        status = await _take_turns(course, policy, seat, rules)
    except ModelError as error:
        return Failed(kind="template", detail=f"task {task.id}: {error}")
    return course.record(status, seat.seconds)


async def _take_turns(course: Course, policy: Policy, seat: Seat, rules: Rules) -> Status:
    """Turn by turn, until the environment ends the episode or a budget cuts it off."""
    for turn in range(rules.max_turns):
        completion, context = await _say(course, policy, turn), course.history.context
        if completion.finish_reason is not FinishReason.STOP:
            course.said.append(Message(role="assistant", content=course.response))
            context.cut_off()
            return Status.TRUNCATED
        heard = await _answered(course, completion, policy.renderer, seat, rules.read)
        course.said.extend(heard.messages)
        context.judge(heard.reward, heard.terminated)
        if heard.terminated:
            return Status.TERMINATED
        cut = heard.truncated or turn + 1 == rules.max_turns
        if cut or not course.history.grow(course.response, heard.messages, policy.max_context_tokens):
            course.history.conclude(heard.messages, policy.max_context_tokens)
            context.cut_off()
            return Status.TRUNCATED
    raise AssertionError("the last turn cuts the episode off")


async def _say(course: Course, policy: Policy, turn: int) -> Completion:
    """One reply to all that is in the context, within the budgets of turn and context."""
    began = time.monotonic()
    completion = await policy.engine.generate(
        Prompt(token_ids=course.history.context.token_ids),
        sampling=replace(policy.sampling, max_tokens=_room(course, policy)),
        seed=policy.seed_of(turn),
        session=policy.session,
    )
    course.generate_seconds += time.monotonic() - began
    course.history.context.say(completion)
    course.response, course.engine = policy.renderer.text(completion.token_ids), completion.engine
    return completion


async def _answered(
    course: Course, completion: Completion, renderer: Renderer, seat: Seat, read: ToolFormat
) -> Observation:
    """What the environment says to a reply. It is not asked about tool calls that nobody can read."""
    spoken = read(renderer.marked_text(completion.token_ids))
    action = _action(spoken, course.response)
    course.said.append(action)
    if spoken.problem is None:
        return await seat.step(action)
    course.malformed_calls += 1
    return Observation(messages=(Message(role="tool", content=spoken.problem),))


def _action(spoken: Spoken, text: str) -> Message:
    if spoken.calls:
        return Message(role="assistant", content=spoken.beside, tool_calls=spoken.calls)
    return Message(role="assistant", content=text)


def _room(course: Course, policy: Policy) -> int:
    """Tokens that the next reply may have, from the ids so far."""
    return min(policy.sampling.max_tokens, policy.max_context_tokens - len(course.history.context))


def _too_long(course: Course, policy: Policy) -> Failed:
    return Failed(
        kind="prompt_too_long",
        detail=f"task {course.task.id}: {len(course.history.context)} prompt tokens in a context of "
        f"{policy.max_context_tokens}",
    )
