"""Adapter for GEM's environments: Gymnasium's interface over text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.env.adapters.episode_random import EpisodeRandom
from rlhf.env.adapters.imports import imported
from rlhf.env.adapters.spaces import records, step_observation
from rlhf.env.single_turn import first_messages
from rlhf.errors import ConfigError
from rlhf.types import EnvironmentSpec, Message, Observation, Task


class GemEnvironment:
    """One episode of the environment that GEM registers as `id`, for instance `game:GuessTheNumber-v0-easy`. A whole
    reply is an action. All random draws come from the episode's seed. Raises `ConfigError`."""

    def __init__(self, id: str, *, options: Mapping[str, Any] | None = None) -> None:
        self._library = imported("gem")
        if id not in self._library.envs.registration.ENV_REGISTRY:
            raise ConfigError(f"gem has no environment {id}")
        self._id, self._options = id, dict(options or {})
        self.spec = EnvironmentSpec(name=id, description=f"{id} of GEM")

    def reset(self, task: Task, *, seed: int) -> Observation:
        self._random = EpisodeRandom(seed)
        with self._random.drawing():
            self._game = self._library.make(self._id, **self._options)
            seen, info = self._game.reset(seed=seed % 2**32)
        return Observation(messages=first_messages(task, observation_with_suffix(seen, info)), info=records(info))

    def step(self, action: Message) -> Observation:
        with self._random.drawing():
            seen, *outcome = self._game.step(action.content)
        return step_observation(observation_with_suffix(seen, outcome[-1]), *outcome)

    def close(self) -> None:
        """No resources to free."""


def observation_with_suffix(seen: str, info: Mapping[str, Any]) -> str:
    return "\n".join(filter(None, (str(seen), str(info.get("suffix", "")))))
