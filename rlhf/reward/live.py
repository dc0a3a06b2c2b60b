"""Interface of a reward function with `start` and `close`."""

from __future__ import annotations

from typing import Protocol

from rlhf.protocols import RewardFunction


class LiveReward(RewardFunction, Protocol):
    """Interface of a recipe's reward: `start` reports errors of the set-up early; `close` ends what was started, and
    raises nothing for what has ended already."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
