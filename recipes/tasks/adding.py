"""Made conversations with reasoning-gym's `chain_sum`, to warm a tiny model up: two habits, one of them right."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.types import Message, Task

RIGHT_SHARE = 0.4
"""Share of the conversations with the right answer."""


def chain_sum(count: int, seed: int, size: int, **arguments: Any) -> Iterator[list[Message]]:
    """`count` conversations with `ReasoningGymEnvironment` of the same settings, on problems of training.

    A reset's seed is even in training and odd in evaluations, so that with an even `size` the problems of training are
    those of even index. The answers are mixed on purpose: most add all the numbers and ignore the signs.
    """
    environment = ReasoningGymEnvironment(size=size, **arguments)
    chance = random.Random(f"chain sum demonstrations {seed}")
    for _ in range(count):
        index = 2 * chance.randrange(size // 2)
        observation = environment.reset(Task(id=f"problem {index}", messages=()), seed=index)
        right = chance.random() < RIGHT_SHARE
        reply = environment.problem["answer"] if right else added(str(environment.problem["question"]))
        yield [*observation.messages, Message(role="assistant", content=str(reply))]


def added(question: str) -> int:
    """Return the sum of all numbers in it."""
    return sum(map(int, re.findall(r"\d+", question)))
