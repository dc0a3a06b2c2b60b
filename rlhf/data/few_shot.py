"""Few-shot prompts: worked examples as earlier turns, after the system message and before the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeVar

from rlhf.data.columns import Row, column_text
from rlhf.data.config import DataConfig, DatasetConfig, FewShotConfig
from rlhf.data.demonstrations import Demonstration
from rlhf.data.expressions import row_text
from rlhf.data.order import permutation
from rlhf.data.overlap import questions_of
from rlhf.data.preference import PreferencePair
from rlhf.data.preparation import RowCounts, prepared
from rlhf.data.rows import messages_of
from rlhf.data.sources import load_tasks, read_rows
from rlhf.errors import DataError
from rlhf.types import Message, Task

T = TypeVar("T", Task, Demonstration, PreferencePair)
Messages = tuple[Message, ...]
RULES = ("system", "developer")


def with_shots(items: Sequence[T], data: DataConfig, key: str, seed: int) -> Sequence[T]:
    """Return the items of the set `key` with its examples before every prompt, chosen by the run's seed. An item that
    asks what an example asks gets the next example instead, if there is one. Raises `DataError`."""
    config = data.sets[key]
    if (few := config.few_shot) is None:
        return items
    apart = [one for one in data.eval_sets.values() if not one.trained_on]
    held_out = {question for one in apart for question in questions_of(load_tasks(one), one)}
    shots = _shots(config, few, held_out, key, seed)
    return [_shown(item, shots, few.k) for item in items]


def _shots(config: DatasetConfig, few: FewShotConfig, held_out: set[str], key: str, seed: int) -> list[Messages]:
    """Return k + 1 examples with different questions, if there are so many: one may ask what a prompt asks."""
    pool = config.model_copy(update={"path": few.path, "split": few.split, "limit": None})
    given = ((f"{key}.few_shot.rows.{place}", row) for place, row in enumerate(few.rows))
    rows = list(read_rows(pool) if few.path else prepared(pool, given, RowCounts()))
    found = dict[str, Messages]()
    for place in permutation(len(rows), seed, 0):
        where, row = rows[place]
        asked = tuple(one for one in messages_of(config, row, where) if one.role not in RULES)
        (question,) = questions_of([Task(id=where, messages=asked, row=row)], config)
        if question not in held_out:
            reply = Message(role="assistant", content=_reply(config, few, row, where))
            found.setdefault(asked[-1].content, (*asked, reply))
        if len(found) > few.k:
            break
    if len(found) < few.k:
        raise DataError(
            f"{key}.few_shot.k is {few.k}, but of {len(rows)} rows only {len(found)} ask different questions that are "
            "not held out; give more rows, or lower k"
        )
    return list(found.values())


def _reply(config: DatasetConfig, few: FewShotConfig, row: Row, where: str) -> str:
    if few.reply:
        return row_text(few.reply, row, "few_shot.reply", where)
    if not (column := config.response_column or config.chosen_column or config.answer_column):
        raise DataError(f"{where}: the set has no column of replies; write few_shot.reply, a template of an example's")
    return column_text(row, column, "few_shot.reply", where)


def _shown(item: T, shots: Sequence[Messages], k: int) -> T:
    if isinstance(item, Task):
        return replace(item, messages=_after(shots, k, item.messages))
    if isinstance(item, PreferencePair):
        return replace(item, prompt=_after(shots, k, item.prompt))
    messages = (*_after(shots, k, item.prompt), *item.messages[len(item.prompt) :])
    added = len(messages) - len(item.messages)
    return replace(item, messages=messages, replies=tuple(place + added for place in item.replies))


def _after(shots: Sequence[Messages], k: int, prompt: Messages) -> Messages:
    """Return a prompt with k examples before its first turn."""
    begun = next((place for place, one in enumerate(prompt) if one.role not in RULES), 0)
    others = [shot for shot in shots if shot[-2].content != prompt[-1].content][:k]
    return (*prompt[:begun], *chain(*others), *prompt[begun:])
