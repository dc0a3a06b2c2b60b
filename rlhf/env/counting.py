"""Made conversations with reasoning-gym's `letter_counting`, for warming a tiny model up: right and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.types import Message, Task

RIGHT_SHARE = 0.3
"""Share of the conversations with the right answer."""


def letter_counting(count: int, seed: int, size: int, **arguments: Any) -> Iterator[list[Message]]:
    """`count` conversations with `ReasoningGymEnvironment` of the same settings, on problems of training.

    A reset's seed is even in training and odd in evaluations, so that with an even `size` the problems of training are
    those of even index. The answers are mixed on purpose: most are one too many.
    """
    environment = ReasoningGymEnvironment(size=size, **arguments)
    chance = random.Random(f"letter counting demonstrations {seed}")
    for _ in range(count):
        index = 2 * chance.randrange(size // 2)
        asked = environment.reset(Task(id=f"problem {index}", messages=()), seed=index)
        answer = int(environment.problem["answer"]) + (chance.random() >= RIGHT_SHARE)
        yield [*asked.messages, Message(role="assistant", content=str(answer))]
