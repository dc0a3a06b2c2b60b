"""Made conversations with reasoning-gym's `spell_backward`, to warm a tiny model up: two habits, one of them right."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.types import Message, Task

BACKWARD_SHARE = 0.3
"""Share of the conversations with the right answer."""


def spell_backward(count: int, seed: int, size: int, **arguments: Any) -> Iterator[list[Message]]:
    """`count` conversations with `ReasoningGymEnvironment` of the same settings, on problems of training.

    A reset's seed is even in training and odd in evaluations, so that with an even `size` the problems of training are
    those of even index. The answers are mixed on purpose: most say the word as it is.
    """
    environment = ReasoningGymEnvironment(size=size, **arguments)
    chance = random.Random(f"spelling demonstrations {seed}")
    for _ in range(count):
        index = 2 * chance.randrange(size // 2)
        asked = environment.reset(Task(id=f"problem {index}", messages=()), seed=index)
        backward = str(environment.problem["answer"])
        said = backward if chance.random() < BACKWARD_SHARE else backward[::-1]
        yield [*asked.messages, Message(role="assistant", content=said)]
