"""Adapter for EnvPool's environments: each episode has a pool of one environment, made with the episode's seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.env.adapters.gymnasium import GymnasiumEnvironment
from rlhf.env.adapters.imports import imported
from rlhf.errors import ConfigError


class PoolOfOne:
    """A pool of EnvPool with one environment, with the methods of a Gymnasium environment. Raises `ConfigError`."""

    def __init__(self, id: str, options: Mapping[str, Any]) -> None:
        self._envpool, self._id, self._options = imported("envpool"), id, options
        if id not in self._envpool.list_all_envs():
            raise ConfigError(f"envpool has no environment {id}")
        self._pool = self._made(0)
        self.action_space, self.observation_space = self._pool.action_space, self._pool.observation_space

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """Start an episode in a new pool, because a pool has one seed for its whole life."""
        self._pool = self._made(seed % 2**31)
        seen, _ = self._pool.reset()
        return seen[0], {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, _ = self._pool.step(np.array([action]))
        return seen[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def close(self) -> None:
        self._pool.close()

    def _made(self, seed: int) -> Any:
        sizes = {"num_envs": 1, "num_threads": 1}
        return self._envpool.make(self._id, env_type="gymnasium", seed=seed, **sizes, **self._options)


class EnvPoolEnvironment(GymnasiumEnvironment):
    """One episode of the environment that EnvPool makes as `id` with `options`; else as `GymnasiumEnvironment`."""

    library = "EnvPool"

    def make_game(self, id: str, options: Mapping[str, Any]) -> Any:
        return PoolOfOne(id, options)
