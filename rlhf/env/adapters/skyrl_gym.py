"""Adapter for SkyRL-gym's environments: the task provides the prompt, the environment the turns and the reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.env.adapters.imports import imported
from rlhf.env.adapters.spaces import records
from rlhf.errors import ConfigError
from rlhf.types import EnvironmentSpec, Message, Observation, Task


class SkyrlGymEnvironment:
    """One episode of the environment that SkyRL-gym registers as `id`, with its `config`. Its `extras` are the task's
    row; without a column `reward_spec`, the task's answer is its `ground_truth`. Raises `ConfigError`."""

    def __init__(self, id: str, *, config: Mapping[str, Any] | None = None) -> None:
        self._library = imported("skyrl_gym")
        if id not in self._library.registry:
            raise ConfigError(f"skyrl-gym has no environment {id}; it has: {', '.join(self._library.registry)}")
        self._id, self._config = id, dict(config or {})
        self._game: Any = None
        self.spec = EnvironmentSpec(name=id, description=f"{id} of SkyRL-gym")

    def reset(self, task: Task, *, seed: int) -> Observation:
        extras = {"reward_spec": {"ground_truth": task.answer}, **task.row}
        self._game = self._library.make(self._id, env_config=self._config, extras=extras)
        chat, notes = self._game.init([{"role": message.role, "content": message.content} for message in task.messages])
        return Observation(messages=messages(chat), info=records(notes))

    def step(self, action: Message) -> Observation:
        result = self._game.step(action.content)
        return Observation(
            messages=messages(result["observations"]),
            reward=float(result["reward"]),
            terminated=bool(result["done"]),
            info=records(result.get("metadata") or {}),
        )

    def close(self) -> None:
        if self._game is not None:
            self._game.close()


def messages(chat: list[Mapping[str, str]]) -> tuple[Message, ...]:
    return tuple(Message(role=message["role"], content=message["content"]) for message in chat)
