"""An episode with an environment: policy and environment take turns, in one role or in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf.errors import EnvironmentFailed, ModelError
from rlhf.protocols import Environment, Environments
from rlhf.rollout.episode import AGENT, Course, Policy, Unplayable, opened, say
from rlhf.rollout.seat import Seat
from rlhf.rollout.tool_calls import Spoken, ToolFormat, plain
from rlhf.types import (
    Completion,
    Failed,
    FinishReason,
    Message,
    Observation,
    Status,
    Task,
    Tool,
    Trajectory,
    finite_number,
)

REWARDS = "rewards"
"""Where an environment with several roles says at the end what each has earned: `info["rewards"]`, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How turns are taken with an environment of that name.

    `max_turns` are those of each role; `timeout_seconds` is for all waiting for it in one episode; `last_turns` is how
    many turns the policy sees, None is all of them; `read` finds the tool calls in a reply.
    """

    environment: str
    max_turns: int
    timeout_seconds: float
    last_turns: int | None = None
    read: ToolFormat = plain
    roles: tuple[str, ...] = (AGENT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithEnvironment:
    """A way to play: every episode has an environment of its own, and the policy has all roles of it."""

    environments: Environments
    rules: Rules

    @property
    def roles(self) -> tuple[str, ...]:
        return self.rules.roles

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.environments.spec.tools

    async def __call__(self, task: Task, policy: Policy, seed: int) -> tuple[Trajectory | Failed, ...]:
        environment = await self.environments.open(policy.session)
        try:
            return await play(task, policy, environment, seed=seed, rules=self.rules)
        finally:
            await environment.close()


async def play(
    task: Task, policy: Policy, environment: Environment, *, seed: int, rules: Rules
) -> tuple[Trajectory | Failed, ...]:
    """The episode of a task with an environment, which is reset with `seed` and closed by whoever opened it.

    A prompt that leaves no room for a reply is `Failed("prompt_too_long")`, a chat template that cannot say what the
    environment says `Failed("template")`, both for every role; a role whose turn never came is `Failed("never_acted")`.
    An episode that has waited too long for its environment is cut off after the reply it was given last. Raises what
    engine and environment raise.
    """
    table = Table(task=task, policy=policy, rules=rules)
    seat = Seat(environment, rules.environment, rules.timeout_seconds)
    try:
        status = await _take_turns(table, seat, await seat.reset(task, seed))
    except Unplayable as error:
        return tuple(error.failed for _ in rules.roles)
    except ModelError as error:
        return tuple(Failed(kind="template", detail=f"task {task.id}: {error}") for _ in rules.roles)
    return tuple(table.record(role, status, seat.seconds) for role in rules.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The courses of those who play, each with what it has seen and nothing else."""

    task: Task
    policy: Policy
    rules: Rules
    courses: dict[str, Course] = field(default_factory=dict)

    def told(self, heard: Observation) -> Course | None:
        """The course of the role that acts next, which has read what it was told; None when there is no room to reply.

        Raises `Unplayable` where nothing was ever asked of it that leaves room.
        """
        role = self.actor(heard)
        course = self.courses.get(role)
        if course is None:
            course = opened(self.task, self.policy, heard.messages, self.rules.last_turns, role)
            self.courses[role] = course
        elif not course.history.grow(course.response, heard.messages, self.policy.max_context_tokens):
            return None
        course.said.extend(heard.messages)
        return course

    def actor(self, heard: Observation) -> str:
        """Whose turn it is. Raises `EnvironmentFailed` for a role that nobody has."""
        if len(self.rules.roles) == 1:
            return self.rules.roles[0]
        if heard.role not in self.rules.roles:
            detail = f"it is the turn of {heard.role!r}, and the roles are {', '.join(self.rules.roles)}"
            raise EnvironmentFailed(self.rules.environment, "protocol", detail)
        return heard.role

    def cut_off(self, heard: Observation | None) -> None:
        """Everybody's last turn was the last one; what was heard last is added for a critic to value."""
        course = self.courses.get(self.actor(heard)) if heard else None
        if heard and course:
            course.said.extend(heard.messages)
            course.history.conclude(heard.messages, self.policy.max_context_tokens)
        for cut in self.courses.values():
            cut.history.context.cut_off()

    def conclude(self, heard: Observation) -> None:
        """The environment has ended the episode: for everybody, each with what it has earned."""
        earned = final_rewards(heard.info, self.rules) if len(self.rules.roles) > 1 else {}
        for role, course in self.courses.items():
            course.history.context.end(earned.get(role))
        if last := self.courses.get(self.actor(heard)):
            last.said.extend(heard.messages)

    def record(self, role: str, status: Status, seconds: float) -> Trajectory | Failed:
        """What became of a role."""
        course = self.courses.get(role)
        if course is None:
            return Failed(kind="never_acted", detail=f"task {self.task.id}: it was never the turn of {role}")
        return course.record(status, seconds)


async def _take_turns(table: Table, seat: Seat, heard: Observation) -> Status:
    """Turn by turn, until the environment ends the episode or a budget cuts it off."""
    for turn in range(table.rules.max_turns * len(table.rules.roles)):
        course = table.told(heard)
        if course is None:
            break
        completion = await say(course, table.policy, turn)
        if completion.finish_reason is not FinishReason.STOP:
            course.said.append(Message(role="assistant", content=course.response))
            table.cut_off(None)
            return Status.TRUNCATED
        answer = await _answered(course, completion, table, seat)
        if answer is None:
            course.out_of_time = True
            table.cut_off(None)
            return Status.TRUNCATED
        heard = answer
        course.history.context.judge(heard.reward)
        if heard.terminated:
            table.conclude(heard)
            return Status.TERMINATED
        if heard.truncated:
            break
    table.cut_off(heard)
    return Status.TRUNCATED


async def _answered(course: Course, completion: Completion, table: Table, seat: Seat) -> Observation | None:
    """What the environment says to a reply, None when it was waited for too long. It is not asked about tool calls that
    nobody can read."""
    spoken = table.rules.read(table.policy.renderer.marked_text(completion.token_ids))
    action = _action(spoken, course.response)
    course.said.append(action)
    if spoken.problem is None:
        return await seat.step(action)
    course.malformed_calls += 1
    return Observation(messages=(Message(role="tool", content=spoken.problem),), role=course.role)


def _action(spoken: Spoken, text: str) -> Message:
    if spoken.calls:
        return Message(role="assistant", content=spoken.beside, tool_calls=spoken.calls)
    return Message(role="assistant", content=text)


def final_rewards(info: Mapping[str, object], rules: Rules) -> dict[str, float]:
    """What each role has earned by the end of the episode. Raises `EnvironmentFailed` for what is no number."""
    given = info.get(REWARDS, {})
    if not isinstance(given, Mapping):
        raise EnvironmentFailed(rules.environment, "protocol", f"info[{REWARDS!r}] is {given!r:.80}, not one by role")
    return {str(role): _earned(role, reward, rules) for role, reward in given.items()}


def _earned(role: object, reward: object, rules: Rules) -> float:
    number = finite_number(reward)
    if number is None:
        detail = f"the reward of {role} is {reward!r:.40}, which is no number"
        raise EnvironmentFailed(rules.environment, "protocol", detail)
    return number
