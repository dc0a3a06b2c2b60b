"""A reward function with a beginning and an end."""

from __future__ import annotations

from typing import Protocol

from rlhf.protocols import RewardFunction


class LiveReward(RewardFunction, Protocol):
    """What a recipe's reward is, whatever scores: `start` makes errors of the set-up come early, `close` ends what
    was started and never raises for what is gone already."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
