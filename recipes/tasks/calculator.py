"""Made conversations with an environment, for warming a tiny model up: mixed habits, of which a reward picks one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from rlhf.env.tools import CALCULATOR, calculated, made_question
from rlhf.types import Message

TOOL_SHARE = 0.35
"""Share of the conversations in which the calculator is asked."""
GIVEN_UP = Message(role="assistant", content="I give up")


def demonstrations(count: int, seed: int, digits: int = 3, operations: str = "+*") -> Iterator[list[Message]]:
    """`count` conversations with `CalculatorEnvironment` of the same settings, on questions of training.

    They are mixed on purpose: in most of them the question is given up, in the others the calculator is asked and its
    answer repeated. The warmed-up model knows how to call the tool, and mostly does not.
    """
    chance = random.Random(f"calculator demonstrations {seed}")
    for _ in range(count):
        question = made_question(2 * chance.getrandbits(61), digits, operations)
        prompt = Message(role="user", content=question)
        yield [prompt, *(_calculated(question) if chance.random() < TOOL_SHARE else [GIVEN_UP])]


def _calculated(question: str) -> list[Message]:
    call = json.dumps({"name": CALCULATOR.name, "arguments": {"expression": question}})
    result = calculated(question)
    return [
        Message(role="assistant", content=f"<tool_call>{call}</tool_call>"),
        Message(role="tool", content=result),
        Message(role="assistant", content=result),
    ]
