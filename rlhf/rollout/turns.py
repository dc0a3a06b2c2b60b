"""Episodes with an environment: policy and environment alternate turns, in one role or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlhf.chat.shown import misplaced
from rlhf.chat.tool_calls import new_id, taken_ids, with_ids
from rlhf.errors import EnvironmentFailed, ModelError
from rlhf.images import IMAGE_MARK
from rlhf.protocols import Environment, Environments
from rlhf.rollout.episode import AGENT, EpisodeState, PolicyClient, Unplayable, open_episode
from rlhf.rollout.history import conclude
from rlhf.rollout.timed_environment import TimedEnvironment
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

PLAYS = 3
REWARDS = "rewards"
"""Key of `info` with the final rewards by role, for environments with several roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    """Limits of the turns with the environment of that name: `max_turns` for each role, `timeout_seconds` waiting for
    the environment in one episode, and `last_turns`, how many turns the policy sees, None is all of them."""

    environment: str
    max_turns: int
    timeout_seconds: float
    last_turns: int | None = None
    roles: tuple[str, ...] = (AGENT,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithEnvironment:
    """Episode runner with an environment: the policy plays all of its roles. An episode whose environment is lost is
    replayed with the same seeds, at most `PLAYS` times in all: its own actions may end the environment."""

    environments: Environments
    rules: TurnRules

    @property
    def roles(self) -> tuple[str, ...]:
        return self.rules.roles

    @property
    def tools(self) -> tuple[Tool, ...]:
        return self.environments.spec.tools

    async def __call__(
        self, task: Task, policy: PolicyClient, seed: int, left: int = PLAYS - 1
    ) -> tuple[Trajectory | Failed, ...]:
        environment = await self.environments.open(policy.session)
        try:
            return await play(task, policy, environment, seed=seed, rules=self.rules)
        except EnvironmentFailed as error:
            if error.kind != "lost" or not left:
                raise
        finally:
            await environment.close()
        return await self(task, policy, seed, left - 1)


async def play(
    task: Task, policy: PolicyClient, environment: Environment, *, seed: int, rules: TurnRules
) -> tuple[Trajectory | Failed, ...]:
    """Play one episode with an environment, which is reset with `seed`; the caller closes it. A prompt that leaves no
    room for a reply is `Failed("prompt_too_long")`, a chat template that cannot render the environment's messages
    `Failed("template")`, both for every role; a role that never had a turn is `Failed("never_acted")`, or
    `Failed("cut_off")` where a limit ended the episode first. At the
    environment's timeout the episode is cut off after its last reply. Raises what engine and environment raise."""
    agents = MultiAgentState(task=task, policy=policy, rules=rules)
    timed = TimedEnvironment(environment, rules.environment, rules.timeout_seconds)
    try:
        status = await _take_turns(agents, timed, await timed.reset(task, seed))
    except Unplayable as error:
        return tuple(error.failed for _ in rules.roles)
    except ModelError as error:
        return tuple(Failed(kind="template", detail=f"task {task.id}: {error}") for _ in rules.roles)
    return tuple(agents.record(role, status, timed) for role in rules.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiAgentState:
    """The episode states of all roles; each contains only what that role has seen."""

    task: Task
    policy: PolicyClient
    rules: TurnRules
    states: dict[str, EpisodeState] = field(default_factory=dict)

    def extended(self, observation: Observation) -> EpisodeState | None:
        """Return the state of the role that acts next, extended by the observation; None when there is no room for a
        reply. Raises `Unplayable` where the role's first prompt leaves none."""
        role = self.actor(observation)
        observation = self._for_policy(observation)
        state = self.states.get(role)
        if state is None:
            state = open_episode(self.task, self.policy, observation.messages, self.rules.last_turns, role)
            self.states[role] = state
        elif not state.history.grow(state.response, observation.messages, self.policy.max_context_tokens):
            return None
        state.said.extend(observation.messages)
        return state

    def _for_policy(self, observation: Observation) -> Observation:
        """Return the observation as the policy gets it: a model without a tower reads `[image]` in results of tools.
        Raises `EnvironmentFailed` where a model that sees would miss an image."""
        if self.policy.renderer.features_of is None:
            if not any(message.images for message in observation.messages):
                return observation
            return replace(observation, messages=tuple(map(_without_images, observation.messages)))
        for one in observation.messages:
            if one.role != "assistant" and (problem := misplaced(one.content, len(one.images))):
                raise EnvironmentFailed(self.rules.environment, "protocol", f"{problem}; its role is {one.role}")
        return observation

    def actor(self, observation: Observation) -> str:
        """Return the role that acts next. Raises `EnvironmentFailed` for an unknown role."""
        if len(self.rules.roles) == 1:
            return self.rules.roles[0]
        if observation.role not in self.rules.roles:
            detail = f"it gives the turn to {observation.role!r}, but the roles are {', '.join(self.rules.roles)}"
            raise EnvironmentFailed(self.rules.environment, "protocol", detail)
        return observation.role

    def cut_off(self, observation: Observation | None) -> None:
        """Mark the last turn of every role as truncated; the last observation is appended for a critic to value."""
        state = self.states.get(self.actor(observation)) if observation else None
        if observation and state:
            state.said.extend(observation.messages)
            conclude(self.policy.renderer, state.history.context, observation.messages, self.policy.max_context_tokens)
        for cut in self.states.values():
            cut.history.context.cut_off()

    def conclude(self, observation: Observation) -> None:
        """End the episode for every role, each with its final reward: the environment has terminated."""
        earned = final_rewards(observation.info, self.rules) if len(self.rules.roles) > 1 else {}
        for role, state in self.states.items():
            state.history.context.end(earned.get(role))
        if last := self.states.get(self.actor(observation)):
            last.said.extend(observation.messages)

    def record(self, role: str, status: EpisodeStatus, timed: TimedEnvironment) -> Trajectory | Failed:
        state = self.states.get(role)
        if state is None:
            never, kind = f"task {self.task.id}: it was never the turn of {role}", "never_acted"
            if status is EpisodeStatus.TRUNCATED:
                cut = any(one.cut_reply for one in self.states.values())
                limit = "a reply reached sampling.max_tokens or the context's end" if cut else "time or turns ran out"
                never, kind = f"{never}: before, {limit}, which ended the episode", "cut_off"
            return Failed(kind=kind, detail=never)
        return state.record(status, timed.seconds, timed.infos)


def _without_images(message: Message) -> Message:
    if message.role != "tool" or not message.images:
        return message
    return replace(message, content=message.content.replace(IMAGE_MARK, "[image]"), images=())


async def _take_turns(agents: MultiAgentState, timed: TimedEnvironment, observation: Observation) -> EpisodeStatus:
    """Alternate turns until the environment ends the episode or a budget cuts it off."""
    for turn in range(agents.rules.max_turns * len(agents.rules.roles)):
        state = agents.extended(observation)
        if state is None:
            break
        completion = await state.ask(agents.policy, turn)
        state.receive(agents.policy, completion)
        if completion.finish_reason is not FinishReason.STOP:
            state.said.append(Message(role="assistant", content=state.response))
            agents.cut_off(None)
            return EpisodeStatus.TRUNCATED
        answer = await _answered(state, completion, agents, timed)
        if answer is None:
            state.out_of_time = True
            agents.cut_off(None)
            return EpisodeStatus.TRUNCATED
        observation = answer
        state.history.context.reward_turn(observation.reward)
        if observation.terminated:
            agents.conclude(observation)
            return EpisodeStatus.TERMINATED
        if observation.truncated:
            break
    agents.cut_off(observation)
    return EpisodeStatus.TRUNCATED


async def _answered(
    state: EpisodeState, completion: Completion, agents: MultiAgentState, timed: TimedEnvironment
) -> Observation | None:
    """Return the environment's observation after a reply, None at its timeout. It sees no malformed tool calls."""
    renderer, before = agents.policy.renderer, state.history.context.token_ids[: -len(completion.token_ids)]
    parsed = renderer.parsed(renderer.marked_text(completion.token_ids), before)
    content = parsed.beside or ("" if parsed.calls else state.response)
    action = Message(role="assistant", content=content, tool_calls=with_ids(parsed.calls, state.said))
    state.said.append(action)
    if parsed.problem is None:
        return await timed.step(action)
    state.malformed_calls += 1
    told = Message(role="tool", content=parsed.problem, tool_call_id=new_id(taken_ids(state.said)))
    return Observation(messages=(told,), role=state.role)


def final_rewards(info: Mapping[str, object], rules: TurnRules) -> dict[str, float]:
    """Return the final reward of each role. Raises `EnvironmentFailed` for a value that is not a finite number."""
    given, earned = info.get(REWARDS, {}), dict[str, float]()
    if not isinstance(given, Mapping):
        raise EnvironmentFailed(
            rules.environment, "protocol", f"info[{REWARDS!r}] is {given!r:.80}, not a mapping from role to reward"
        )
    for role, reward in given.items():
        if (number := finite_number(reward)) is None:
            detail = f"the reward of {role} is {reward!r:.40}, not a number"
            raise EnvironmentFailed(rules.environment, "protocol", detail)
        earned[str(role)] = number
    return earned
