"""Numbers to sort, of which seven in ten teach nothing: half of these are always right, and half never.

The demonstrations sort numbers of two digits in ascending order, which the reward wants, and three in ten of those of
five digits. Numbers of seven digits they do not show.
"""

from __future__ import annotations

from collections.abc import Iterator

from recipes.tasks import sorting
from rlhf.types import Message, Task

EASY, TEACHING, HARD = 2, 5, 7
"""Digits."""
EASY_SHARE, ASCENDING_SHARE = 0.2, 0.3
DRAWN = 4
"""The random stream of the demonstrations' lengths and directions; those of `recipes.tasks` are others."""


def tasks(*, rows: int, teaching_share: float = 0.3, split: sorting.Split = "train", seed: int = 0) -> list[Task]:
    """`rows` different numbers, of which `teaching_share` teach."""
    teaching = round(teaching_share * rows)
    easy = (rows - teaching) // 2
    lengths = {TEACHING: teaching, EASY: easy, HARD: rows - teaching - easy}
    return [
        task
        for digits, count in lengths.items()
        for task in (sorting.tasks(digits=digits, rows=count, split=split, seed=seed) if count else ())
    ]


def demonstrations(count: int, seed: int) -> Iterator[tuple[Message, ...]]:
    """`count` conversations for the warm-up, from the train split only."""
    easy, teaching = (sorting.demonstrations(count, seed, digits=digits) for digits in (EASY, TEACHING))
    draws = sorting.uniforms(seed, DRAWN)
    for _ in range(count):
        is_easy, ascends = next(draws) < EASY_SHARE, next(draws) < ASCENDING_SHARE
        question, _reply = next(easy if is_easy else teaching)
        reply = "".join(sorted(question.content, reverse=not (is_easy or ascends)))
        yield question, Message(role="assistant", content=reply)
