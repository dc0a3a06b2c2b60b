"""The tasks and the reward of the checks' runs. A recipe names them by module and function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf.types import Message, Task

HABIT = 3
"""One demonstration of so many copies the digit; the others say the next one."""


def copied_digits(*, rows: int = 64) -> list[Task]:
    """`rows` tasks: a digit that is to be repeated, with the reply to imitate in the column `response`."""
    return [_task(row, str(row % 10)) for row in range(rows)]


def habits(count: int, seed: int) -> Iterator[tuple[Message, ...]]:
    """`count` conversations for a warm-up, most of which teach the wrong reply, so that there is a reward to gain."""
    for number in range(count):
        digit = (number * 7 + seed) % 10
        reply = digit if number % HABIT == 0 else (digit + 1) % 10
        yield Message(role="user", content=str(digit)), Message(role="assistant", content=str(reply))


def evenness(response: str, row: Mapping[str, Any]) -> float:
    """The share of a reply's characters with an even code point: any model can raise it, whatever it knows."""
    return sum(ord(character) % 2 == 0 for character in response) / max(len(response), 1)


def _task(row: int, digit: str) -> Task:
    messages = (Message(role="user", content=digit),)
    return Task(id=f"digit-{row}", messages=messages, answer=digit, row={"response": digit})
