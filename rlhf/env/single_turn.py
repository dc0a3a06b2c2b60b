"""Single-turn environment: one question, one answer. Any dataset can be served with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from rlhf.chat.conversation import joined
from rlhf.config import load_piece
from rlhf.types import EnvironmentSpec, Message, Observation, Task

ScoreReply = Callable[[str, Mapping[str, Any]], float]
"""`(reply, row) -> float`, as the rewards of a recipe; `row["answer"]` is the task's reference answer."""


class SingleTurnEnvironment:
    """Asks the task's question; the reply ends the episode. `score` names a function `module:function`, for instance
    `rlhf.reward.rules:exact`. Without one the recipe's reward scores the trajectory. Raises `ConfigError`."""

    def __init__(self, *, score: str | None = None) -> None:
        self._score = None if score is None else cast(ScoreReply, load_piece(score, "score"))
        self.spec = EnvironmentSpec(name="single_turn", description="One question, one answer")

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._task = task
        return Observation(messages=task.messages)

    def step(self, action: Message) -> Observation:
        if self._score is None:
            return Observation(messages=(), terminated=True)
        task = self._task
        row = task.row if task.answer is None else {**task.row, "answer": task.answer}
        return Observation(messages=(), reward=float(self._score(action.content, row)), terminated=True)

    def close(self) -> None:
        """No resources to free."""


def first_messages(task: Task, text: str) -> tuple[Message, ...]:
    """Return the first messages of an episode: the task's, then the environment's text, joined as one user's."""
    return joined(task.messages, (Message(role="user", content=text),))
