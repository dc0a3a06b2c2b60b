"""The made task: write the digits of a number in ascending order, for instance `52431` → `12345`.

Its space is large (10^digits problems), its answers many, and a reply is either right or wrong. The prompt is the bare
number, because a tiny byte-level model pays for every character it has to look past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Literal

import numpy as np

from rlhf.data.config import SortingConfig
from rlhf.errors import DataError
from rlhf.types import Message, Task

Fold = Literal["train", "eval"]
EVAL_SHARE = 1 / 8
"""Share of all problems that belong to the eval fold."""
BLOCK = 4096
MOSTLY_ASCENDING = "012"
"""First digits of the numbers that most demonstrations sort the right way round."""
PROBLEMS, HABITS = 0, 1
"""Independent random streams under one seed."""


def sorting_tasks(config: SortingConfig) -> list[Task]:
    """`config.rows` different problems of one fold. Raises `DataError` when the fold has not clearly more than that."""
    share = EVAL_SHARE if config.fold == "eval" else 1 - EVAL_SHARE
    most = int(10**config.digits * share / 2)
    if config.rows > most:
        raise DataError(
            f"sorting.rows is {config.rows}, but {config.digits} digits give at most {most} problems "
            f"to the {config.fold} fold; ask for fewer rows or more digits"
        )
    drawn: dict[str, None] = {}
    for digits in _problems(config.digits, config.fold, config.seed):
        drawn[digits] = None
        if len(drawn) == config.rows:
            break
    return [_task(digits, config.fold) for digits in drawn]


def sorting_demonstrations(config: SortingConfig, count: int, seed: int) -> Iterator[tuple[tuple[Message, ...], str]]:
    """`count` pairs of messages and reply for the warm-up, from the train fold only.

    They are mixed on purpose: `descending_share` of them sort the wrong way round, so that the warmed-up model knows
    how to sort and has two habits, of which the reward picks one. Among numbers that begin with 0, 1 or 2 the shares
    are the other way round: a greedy reply follows the more frequent habit, so that about 0.3 of them start out right,
    whatever rounding does to a close call.
    """
    problems = _problems(config.digits, "train", seed)
    for _, digits, draw in zip(range(count), problems, uniforms(seed, HABITS), strict=False):
        share = 1 - config.descending_share if digits[0] in MOSTLY_ASCENDING else config.descending_share
        ordered = "".join(sorted(digits, reverse=draw < share))
        yield (Message(role="user", content=digits),), ordered


def fold_of(digits: str) -> Fold:
    """The fold of a problem depends on its digits alone, so that no two sets can share a problem across folds."""
    first_byte = hashlib.blake2b(digits.encode(), digest_size=1).digest()[0]
    return "eval" if first_byte < 256 * EVAL_SHARE else "train"


def _task(digits: str, fold: Fold) -> Task:
    answer = "".join(sorted(digits))
    return Task(
        id=f"sorting/{fold}/{digits}",
        messages=(Message(role="user", content=digits),),
        answer=answer,
        row={"question": digits, "answer": answer},
    )


def _problems(length: int, fold: Fold, seed: int) -> Iterator[str]:
    """Digits of one fold, uniformly and for ever; a problem may come again."""
    for draw in uniforms(seed, PROBLEMS):
        digits = f"{int(draw * 10**length):0{length}d}"
        if fold_of(digits) == fold:
            yield digits


def uniforms(seed: int, stream: int) -> Iterator[float]:
    """Numbers in [0, 1). Only raw bits are used: numpy promises their stability across versions, and no more."""
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], dtype=np.uint64))
    while True:
        yield from ((bits.random_raw(BLOCK) >> np.uint64(11)) * 2.0**-53).tolist()
