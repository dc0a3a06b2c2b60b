"""An engine that says what it is told to, and environments that behave as they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.tool_calls import ParsedReply, hermes
from rlhf.errors import EnvironmentFailed
from rlhf.protocols import Environment
from rlhf.rollout.episode import PolicyClient
from rlhf.rollout.turns import TurnRules, play
from rlhf.types import (
    Completion,
    EnvironmentSpec,
    Failed,
    FinishReason,
    Message,
    Observation,
    Prompt,
    Sampling,
    Task,
    Tool,
    ToolCall,
    Trajectory,
)

ADD = Tool(name="add", description="Adds.", parameters={"type": "object"})
TASK = Task(id="task", messages=())


def says(text: str, role: str = "user", tool_call_id: str | None = None, **outcome: object) -> Observation:
    return Observation(messages=(Message(role=role, content=text, tool_call_id=tool_call_id),), **outcome)


def always(text: str) -> ParsedReply:
    """A tool format of ones own: whatever the policy says calls a tool."""
    return ParsedReply(calls=(ToolCall(id="0", name="echo", arguments={"text": text}),))


class ScriptedEngine:
    """Gives the replies it was made with, in order, token by token with log-probs of their own; `asked` is what it was
    asked with. A reply that does not fit into its budget is cut."""

    def __init__(self, *replies: Sequence[int], stop: int = 2) -> None:
        self._replies, self._stop = iter(replies), stop
        self.asked: list[tuple[list[int], Sampling, int, str]] = []
        self.said: list[Completion] = []
        self.policies: list[str] = []

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        self.policies.append(prompt.policy)
        self.asked.append((prompt.token_ids.tolist(), sampling, seed, session))
        tokens = np.array([*next(self._replies), self._stop][: sampling.max_tokens], np.int32)
        stopped = tokens[-1] == self._stop
        self.said.append(
            Completion(
                token_ids=tokens,
                behaviour_logprobs=-np.arange(1, len(tokens) + 1, dtype=np.float32) / 8,
                versions=np.full(len(tokens), len(self.said), np.int32),
                finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
                engine="scripted",
            )
        )
        return self.said[-1]


class ScriptedEnvironment:
    """An open session that gives the observations it was made with, in order: the first to the reset."""

    def __init__(self, *observations: Observation | EnvironmentFailed) -> None:
        self._observations = iter(observations)
        self.heard: list[Message] = []
        self.seeds: list[int] = []
        self.closed = 0

    async def reset(self, task: Task, *, seed: int) -> Observation:
        self.seeds.append(seed)
        return self._next()

    async def step(self, action: Message) -> Observation:
        self.heard.append(action)
        return self._next()

    async def close(self) -> None:
        self.closed += 1

    def _next(self) -> Observation:
        observation = next(self._observations)
        if isinstance(observation, EnvironmentFailed):
            raise observation
        return observation


class ScriptedEnvironments:
    """Where sessions come from: `make(session)` opens one."""

    spec = EnvironmentSpec(name="scripted", description="For tests.", tools=(ADD,))

    def __init__(self, make: Callable[[str], Environment]) -> None:
        self._make = make
        self.opened: dict[str, Environment] = {}

    async def open(self, session: str) -> Environment:
        self.opened[session] = self._make(session)
        return self.opened[session]


def rules(**changes: object) -> TurnRules:
    settings = {"environment": "scripted", "max_turns": 4, "timeout_seconds": 5.0} | changes
    return TurnRules(**settings)


def policy(engine: ScriptedEngine, tokenizer: PreTrainedTokenizerBase, **changes: object) -> PolicyClient:
    settings = {"sampling": Sampling(max_tokens=64), "max_context_tokens": 2048} | changes
    renderer = ChatRenderer(tokenizer, tools=(ADD,), read=hermes)
    return PolicyClient(engine=engine, renderer=renderer, session="s", seed_of=lambda turn: 100 + turn, **settings)


async def play_alone(
    task: Task, its: PolicyClient, environment: Environment, *, seed: int, rules: TurnRules
) -> Trajectory | Failed:
    """The episode of an environment with one role."""
    [outcome] = await play(task, its, environment, seed=seed, rules=rules)
    return outcome
