"""An episode with an environment: policy and environment take turns, in one role or in several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf.errors import EnvironmentFailed, ModelError
from rlhf.protocols import Environment, Environments
from rlhf.rollout.episode import AGENT, EpisodeState, PolicyClient, Unplayable, generate_reply, opened
from rlhf.rollout.timed_environment import TimedEnvironment
from rlhf.rollout.tool_calls import Spoken, ToolFormat, plain_text
from rlhf.types import (
    Completion,
    EpisodeStatus,
    Failed,
    FinishReason,
    Message,
    Observation,
    Task,
    Tool,
    Trajectory,
    finite_number,
)

REWARDS = "rewards"
"""Where an environment with several roles says at the end what each has earned: `info["rewards"]`, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    """How turns are taken with an environment of that name.

    `max_turns` are those of each role; `timeout_seconds` is for all waiting for it in one episode; `last_turns` is how
    many turns the policy sees, None is all of them; `read` finds the tool calls in a reply.
    """

    environment: str
    max_turns: int
    timeout_seconds: float
    last_turns: int | None = None
    read: ToolFormat = plain_text
    roles: tuple[str, ...] = (AGENT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithEnvironment:
    """A way to play: every episode has an environment of its own, and the policy has all roles of it."""

    environments: Environments
    rules: TurnRules

    @property
    def roles(self) -> tuple[str, ...]:
        return self.rules.roles

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.environments.spec.tools

    async def __call__(self, task: Task, policy: PolicyClient, seed: int) -> tuple[Trajectory | Failed, ...]:
        environment = await self.environments.open(policy.session)
        try:
            return await play(task, policy, environment, seed=seed, rules=self.rules)
        finally:
            await environment.close()


async def play(
    task: Task, policy: PolicyClient, environment: Environment, *, seed: int, rules: TurnRules
) -> tuple[Trajectory | Failed, ...]:
    """The episode of a task with an environment, which is reset with `seed` and closed by whoever opened it.

    A prompt that leaves no room for a reply is `Failed("prompt_too_long")`, a chat template that cannot say what the
    environment says `Failed("template")`, both for every role; a role whose turn never came is `Failed("never_acted")`.
    An episode that has waited too long for its environment is cut off after the reply it was given last. Raises what
    engine and environment raise.
    """
    agents = MultiAgentState(task=task, policy=policy, rules=rules)
    timed = TimedEnvironment(environment, rules.environment, rules.timeout_seconds)
    try:
        status = await _take_turns(agents, timed, await timed.reset(task, seed))
    except Unplayable as error:
        return tuple(error.failed for _ in rules.roles)
    except ModelError as error:
        return tuple(Failed(kind="template", detail=f"task {task.id}: {error}") for _ in rules.roles)
    return tuple(agents.record(role, status, timed.seconds) for role in rules.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiAgentState:
    """The states of those who play, each with what it has seen and nothing else."""

    task: Task
    policy: PolicyClient
    rules: TurnRules
    states: dict[str, EpisodeState] = field(default_factory=dict)

    def told(self, heard: Observation) -> EpisodeState | None:
        """The state of the role that acts next, which has read what it was told; None when there is no room to reply.

        Raises `Unplayable` where nothing was ever asked of it that leaves room.
        """
        role = self.actor(heard)
        state = self.states.get(role)
        if state is None:
            state = opened(self.task, self.policy, heard.messages, self.rules.last_turns, role)
            self.states[role] = state
        elif not state.history.grow(state.response, heard.messages, self.policy.max_context_tokens):
            return None
        state.said.extend(heard.messages)
        return state

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
        state = self.states.get(self.actor(heard)) if heard else None
        if heard and state:
            state.said.extend(heard.messages)
            state.history.conclude(heard.messages, self.policy.max_context_tokens)
        for cut in self.states.values():
            cut.history.context.cut_off()

    def conclude(self, heard: Observation) -> None:
        """The environment has ended the episode: for everybody, each with what it has earned."""
        earned = final_rewards(heard.info, self.rules) if len(self.rules.roles) > 1 else {}
        for role, state in self.states.items():
            state.history.context.end(earned.get(role))
        if last := self.states.get(self.actor(heard)):
            last.said.extend(heard.messages)

    def record(self, role: str, status: EpisodeStatus, seconds: float) -> Trajectory | Failed:
        """What became of a role."""
        state = self.states.get(role)
        if state is None:
            return Failed(kind="never_acted", detail=f"task {self.task.id}: it was never the turn of {role}")
        return state.record(status, seconds)


async def _take_turns(agents: MultiAgentState, timed: TimedEnvironment, heard: Observation) -> EpisodeStatus:
    """Turn by turn, until the environment ends the episode or a budget cuts it off."""
    for turn in range(agents.rules.max_turns * len(agents.rules.roles)):
        state = agents.told(heard)
        if state is None:
            break
        completion = await generate_reply(state, agents.policy, turn)
        if completion.finish_reason is not FinishReason.STOP:
            state.said.append(Message(role="assistant", content=state.response))
            agents.cut_off(None)
            return EpisodeStatus.TRUNCATED
        answer = await _answered(state, completion, agents, timed)
        if answer is None:
            state.out_of_time = True
            agents.cut_off(None)
            return EpisodeStatus.TRUNCATED
        heard = answer
        state.history.context.judge(heard.reward)
        if heard.terminated:
            agents.conclude(heard)
            return EpisodeStatus.TERMINATED
        if heard.truncated:
            break
    agents.cut_off(heard)
    return EpisodeStatus.TRUNCATED


async def _answered(
    state: EpisodeState, completion: Completion, agents: MultiAgentState, timed: TimedEnvironment
) -> Observation | None:
    """What the environment says to a reply, None when it was waited for too long. It is not asked about tool calls that
    nobody can read."""
    spoken = agents.rules.read(agents.policy.renderer.marked_text(completion.token_ids))
    action = _action(spoken, state.response)
    state.said.append(action)
    if spoken.problem is None:
        return await timed.step(action)
    state.malformed_calls += 1
    return Observation(messages=(Message(role="tool", content=spoken.problem),), role=state.role)


def _action(spoken: Spoken, text: str) -> Message:
    if spoken.calls:
        return Message(role="assistant", content=spoken.beside, tool_calls=spoken.calls)
    return Message(role="assistant", content=text)


def final_rewards(info: Mapping[str, object], rules: TurnRules) -> dict[str, float]:
    """What each role has earned by the end of the episode. Raises `EnvironmentFailed` for what is no number."""
    given = info.get(REWARDS, {})
    if not isinstance(given, Mapping):
        raise EnvironmentFailed(rules.environment, "protocol", f"info[{REWARDS!r}] is {given!r:.80}, not one by role")
    return {str(role): _earned(role, reward, rules) for role, reward in given.items()}


def _earned(role: object, reward: object, rules: TurnRules) -> float:
    number = finite_number(reward)
    if number is None:
        detail = f"the reward of {role} is {reward!r:.40}, which is no number"
        raise EnvironmentFailed(rules.environment, "protocol", detail)
    return number
