"""Adapter from an environment of this library to a Gymnasium `Env`, for existing agents that use Gymnasium.

    GymnasiumEnv(CalculatorEnvironment, tasks)                                      # here, in this process
    GymnasiumEnv(lambda: BlockingEnvironment(environments, uuid4().hex), tasks)     # sessions behind a server

Importing this module imports Gymnasium.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

from rlhf.env.adapters.imports import imported
from rlhf.errors import ConfigError
from rlhf.protocols import LocalEnvironment
from rlhf.types import Message, Observation, Task

Env: Any = imported("gymnasium").Env
Text: Any = imported("gymnasium.spaces").Text


class UnrestrictedText(Text):  # type: ignore[misc]
    """Text of any characters up to a length. The alphabet is only used to draw samples."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class GymnasiumEnv(Env):  # type: ignore[misc]
    """Text in, text out, up to `max_length` characters each; every reset makes a new environment. Its seed determines
    the task and the environment's behaviour; `options={"task": index}` selects the task. A turn without a reward counts
    as 0. Raises `ConfigError` for an empty list of tasks, or an environment with several roles."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (so Gymnasium has it)

    def __init__(
        self, create: Callable[[], LocalEnvironment], tasks: Sequence[Task], *, max_length: int = 65536
    ) -> None:
        if not tasks:
            raise ConfigError("a Gymnasium environment needs at least one task")
        self.observation_space, self.action_space = UnrestrictedText(max_length), UnrestrictedText(max_length)
        self._create, self._tasks, self._environment = create, tasks, create()
        if len(self._environment.spec.roles) != 1:
            self._environment.close()
            spec = self._environment.spec
            raise ConfigError(
                f"{spec.name} has the roles {', '.join(spec.roles)}, but Gymnasium supports only one agent"
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        drawn, inner_seed = (int(self.np_random.integers(below)) for below in (len(self._tasks), 2**31))
        self._environment.close()
        self._environment = self._create()
        first = self._environment.reset(self._tasks[(options or {}).get("task", drawn)], seed=inner_seed)
        return _text(first), dict(first.info)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        seen = self._environment.step(Message(role="assistant", content=action))
        return _text(seen), seen.reward or 0.0, seen.terminated, seen.truncated, dict(seen.info)

    def close(self) -> None:
        self._environment.close()


def _text(observation: Observation) -> str:
    return "\n".join(message.content for message in observation.messages)
