"""How the parts are ended."""

from __future__ import annotations

from typing import Any

from rlhf.errors import DeadlinePassed
from rlhf.rollout.engine import RemoteEngine
from rlhf.wiring import stop_engine


class Hanging:
    """A worker that answers nothing in time."""

    name = "engine-0"

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds)


async def test_an_engine_that_cannot_stop_does_not_hide_what_ended_the_run() -> None:
    await stop_engine(RemoteEngine(Hanging()))
