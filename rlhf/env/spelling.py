"""Made conversations with reasoning-gym's `spell_backward`, for warming a tiny model up: right and wrong ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from rlhf.env.adapters.reasoning_gym import ReasoningGymEnvironment
from rlhf.types import Message, Task

RIGHT_SHARE = 0.35
"""Share of the conversations with the right answer."""


def spell_backward(count: int, seed: int, size: int, **arguments: Any) -> Iterator[list[Message]]:
    """`count` conversations with `ReasoningGymEnvironment` of the same settings, on problems of training.

    A reset's seed is even in training and odd in evaluations, so that with an even `size` the problems of training are
    those of even index. The answers are mixed on purpose: most begin with the word's last letter but one, so
    that every letter is in a wrong place. The warmed-up model can spell a word backward, and mostly does not.
    """
    environment = ReasoningGymEnvironment(size=size, **arguments)
    chance = random.Random(f"spell backward demonstrations {seed}")
    for _ in range(count):
        index = 2 * chance.randrange(size // 2)
        asked = environment.reset(Task(id=f"problem {index}", messages=()), seed=index)
        answer = str(environment.problem["answer"])
        said = answer if chance.random() < RIGHT_SHARE else answer[1:]
        yield [*asked.messages, Message(role="assistant", content=said)]
