"""Preferences on the sorting task: of two replies the one with fewer faults is `chosen`, the other `rejected`.

Pairs are of every difficulty: the answer against digits in descending order, or two swaps of neighbours against three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from recipes.tasks import sorting
from rlhf.types import Task

REPLIES = 2
"""The random stream of the replies; those of `recipes.tasks.sorting` are 0 and 1."""


def tasks(*, digits: int = 5, rows: int = 4096, split: sorting.Split = "train", seed: int = 0) -> Iterator[Task]:
    """Iterate over the problems of `recipes.tasks.sorting:tasks` with these settings, each with two replies. Raises
    `DataError`."""
    draws = sorting.uniforms(seed, REPLIES)
    for task in sorting.tasks(digits=digits, rows=rows, split=split, seed=seed):
        chosen, rejected = _pair(str(task.answer), draws)
        yield replace(task, row={**task.row, "chosen": chosen, "rejected": rejected})


def faults(reply: str, answer: str) -> int:
    """How far a reply is from sorted: pairs of digits the wrong way round, and `len(answer)` for every digit that is
    missing or too many, so that leaving digits out never pays."""
    have, want = Counter(reply), Counter(answer)
    strangers = (have - want).total() + (want - have).total()
    return sum(first > second for first, second in combinations(reply, 2)) + len(answer) * strangers


def _pair(answer: str, draws: Iterator[float]) -> tuple[str, str]:
    """Return the better reply and the worse."""
    while True:
        first, second = _reply(answer, draws), _reply(answer, draws)
        difference = faults(first, answer) - faults(second, answer)
        if difference:
            return (first, second) if difference < 0 else (second, first)


def _reply(answer: str, draws: Iterator[float]) -> str:
    """Return the answer, or what a policy that is learning makes of it."""
    kind = next(draws)
    if kind < 0.3:
        return answer
    if kind < 0.55:
        return _swapped(answer, 1 + int(3 * next(draws)), draws)
    if kind < 0.7:
        return answer[::-1]
    if kind < 0.85:
        return "".join(digit for _, digit in sorted((next(draws), digit) for digit in answer))
    return _damaged(answer if kind < 0.925 else answer[::-1], draws)


def _swapped(text: str, times: int, draws: Iterator[float]) -> str:
    for _ in range(times):
        place = int(next(draws) * (len(text) - 1))
        text = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    return text


def _damaged(text: str, draws: Iterator[float]) -> str:
    """One digit left out, said twice, or replaced."""
    place, kind = int(next(draws) * len(text)), int(3 * next(draws))
    put = ("", text[place] * 2, str(int(10 * next(draws))))[kind]
    return text[:place] + put + text[place + 1 :]
