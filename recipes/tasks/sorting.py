"""Write the digits of a number in ascending order, for instance `52431` → `12345`.

Its space is large (10^digits problems), its answers many, and a reply is either right or wrong. The prompt is the bare
number, because a tiny byte-level model pays for every character it has to look past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import numpy as np

from rlhf.errors import DataError
from rlhf.types import Message, Task

Split = Literal["train", "eval"]
EVAL_SHARE = 1 / 8
"""Share of all problems that belong to the eval split."""
BLOCK = 4096
MOSTLY_ASCENDING = "012"
"""First digits of the numbers that most demonstrations sort the right way round."""
PROBLEMS, HABITS = 0, 1
"""Independent random streams under one seed."""


def tasks(*, digits: int = 5, rows: int = 4096, split: Split = "train", seed: int = 0) -> list[Task]:
    """`rows` different problems of one split, drawn by `seed`. Raises `DataError` where it has hardly as many."""
    most = most_rows(10**digits, split)
    if rows > most:
        raise DataError(
            f"rows is {rows}, but {digits} digits give at most {most} problems to the {split} split; "
            "ask for fewer rows or more digits"
        )
    drawn: dict[str, None] = {}
    for number in _problems(digits, split, seed):
        if len(drawn) >= rows:
            break
        drawn[number] = None
    return [_task(number, split) for number in drawn]


def demonstrations(
    count: int, seed: int, *, digits: int = 5, descending_share: float = 0.7
) -> Iterator[tuple[Message, ...]]:
    """`count` conversations for the warm-up, from the train split only.

    They are mixed on purpose: `descending_share` of them sort the wrong way round, so that the warmed-up model knows
    how to sort and has two habits, of which the reward picks one. Among numbers that begin with 0, 1 or 2 the shares
    are the other way round: a greedy reply follows the more frequent habit, so that about 0.3 of them start out right,
    independently of rounding.
    """
    for number, reply in _replies(count, seed, digits, descending_share):
        yield Message(role="user", content=number), Message(role="assistant", content=reply)


def demonstrated(*, rows: int, digits: int = 5, descending_share: float = 0.7, seed: int = 0) -> Iterator[Task]:
    """Iterate over the same `rows` demonstrations as tasks for `kind: sft`, each with its reply in the column
    `response`."""
    for index, (number, reply) in enumerate(_replies(rows, seed, digits, descending_share)):
        yield Task(
            id=f"sorting/demonstrated/{index}",
            messages=(Message(role="user", content=number),),
            row={"question": number, "response": reply},
        )


def split_of(problem: str) -> Split:
    """Return the split of a problem, which depends only on the problem, so that splits share no problem."""
    first_byte = hashlib.blake2b(problem.encode(), digest_size=1).digest()[0]
    return "eval" if first_byte < 256 * EVAL_SHARE else "train"


def most_rows(space: int, split: Split) -> int:
    """Return the most different problems that a split of `space` problems gives. Raises `DataError` for another
    name."""
    if split not in ("train", "eval"):
        raise DataError(f"split is {split!r}; give train or eval")
    return int(space * (EVAL_SHARE if split == "eval" else 1 - EVAL_SHARE) / 2)


def _task(digits: str, split: Split) -> Task:
    answer = "".join(sorted(digits))
    return Task(
        id=f"sorting/{split}/{digits}",
        messages=(Message(role="user", content=digits),),
        answer=answer,
        row={"question": digits, "answer": answer},
    )


def _replies(count: int, seed: int, length: int, descending_share: float) -> Iterator[tuple[str, str]]:
    """Numbers of the train split, and their digits sorted the one way or the other."""
    for digits, draw in islice(zip(_problems(length, "train", seed), uniforms(seed, HABITS), strict=False), count):
        share = 1 - descending_share if digits[0] in MOSTLY_ASCENDING else descending_share
        yield digits, "".join(sorted(digits, reverse=draw < share))


def _problems(length: int, split: Split, seed: int) -> Iterator[str]:
    """Digits of one split, uniformly and for ever; a problem may come again."""
    for draw in uniforms(seed, PROBLEMS):
        digits = f"{int(draw * 10**length):0{length}d}"
        if split_of(digits) == split:
            yield digits


def uniforms(seed: int, stream: int) -> Iterator[float]:
    """Numbers in [0, 1). Only raw bits are used: numpy promises their stability across versions, and no more."""
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], dtype=np.uint64))
    while True:
        yield from ((bits.random_raw(BLOCK) >> np.uint64(11)) * 2.0**-53).tolist()
