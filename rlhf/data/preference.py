"""Preference pairs: two replies to one prompt, one of them preferred. One row of a dataset becomes one pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlhf.data.columns import Row, check_columns, column_of, short_value
from rlhf.data.config import DatasetConfig
from rlhf.data.conversations import chat_of, check_answered, tools_of
from rlhf.data.rows import dressed, messages_of
from rlhf.errors import DataError
from rlhf.types import Message, Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """`chosen` is preferred to `rejected` as the reply to `prompt`, by a `margin`; `where` it comes from."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    margin: float | None = None
    tools: tuple[Tool, ...] = ()
    where: str = field(default="", compare=False)


class Useless(StrEnum):
    """Why a row that reads well makes no pair. Collections of pairs have such rows; they are dropped and counted."""

    SAME = "both replies are the same"
    EMPTY = "a reply is empty"
    BLANK = "the question is blank"
    APART = "the conversations differ before the last reply"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSet:
    """The pairs of a dataset in its order, and the number of rows without one, by reason."""

    pairs: tuple[PreferencePair, ...]
    dropped: Mapping[Useless, int] = field(default_factory=dict)

    def describe(self) -> str:
        """Describe the dropped rows in one line; empty if all were kept."""
        reasons = ", ".join(f"{count} where {reason}" for reason, count in self.dropped.items())
        rows = len(self.pairs) + sum(self.dropped.values())
        return f"{sum(self.dropped.values())} of {rows} pairs dropped: {reasons}" if reasons else ""


def pair_set(rows: Iterable[PreferencePair | Useless], source: str) -> PairSet:
    """Collect the pairs of `source`. Raises `DataError` if it has no pairs."""
    found = list(rows)
    made = PairSet(
        pairs=tuple(pair for pair in found if isinstance(pair, PreferencePair)),
        dropped=Counter(reason for reason in found if isinstance(reason, Useless)),
    )
    if not made.pairs:
        raise DataError(f"{source} has no pair to learn from ({made.describe() or 'it has no rows'})")
    return made


def pair_from_row(config: DatasetConfig, row: Row, where: str) -> PreferencePair | Useless:
    """Return the pair of `row`, or the reason to drop it. `where` names the row in errors. Raises `DataError`."""
    assert config.chosen_column is not None, "the dataset holds pairs"
    assert config.rejected_column is not None, "the two columns belong together"
    check_columns(row, where, chosen_column=config.chosen_column, rejected_column=config.rejected_column)
    prompt, chosen = _conversation(config, row, config.chosen_column, "chosen_column", where)
    other, rejected = _conversation(config, row, config.rejected_column, "rejected_column", where)
    if prompt != other:
        return Useless.APART
    return _pair(config, row, prompt, chosen, rejected, where, tools_of(config, row, where))


def pair_from_task(config: DatasetConfig, task: Task, where: str) -> PreferencePair | Useless:
    """Return the pair of two texts in the task's row. Raises `DataError`."""
    if not task.messages:
        raise DataError(f"{where} has no prompt: a pair is two replies to one prompt; give it messages")
    replies = []
    for key, column in (("chosen_column", config.chosen_column), ("rejected_column", config.rejected_column)):
        reply = column_of(task.row, str(column), key, where)
        if not isinstance(reply, str):
            raise DataError(f"{where}: column {column!r} must be text, but reads {short_value(reply)}")
        replies.append(reply)
    chosen, rejected = replies
    return _pair(config, task.row, task.messages, chosen, rejected, where, task.tools)


def _pair(
    config: DatasetConfig,
    row: Row,
    prompt: tuple[Message, ...],
    chosen: str,
    rejected: str,
    where: str,
    tools: tuple[Tool, ...],
) -> PreferencePair | Useless:
    if not prompt[-1].content.strip():
        return Useless.BLANK
    if not chosen.strip() or not rejected.strip():
        return Useless.EMPTY
    if chosen == rejected:
        return Useless.SAME
    margin = _margin(config, row, where)
    return PreferencePair(prompt=prompt, chosen=chosen, rejected=rejected, margin=margin, tools=tools, where=where)


def _conversation(
    config: DatasetConfig, row: Row, column: str, key: str, where: str
) -> tuple[tuple[Message, ...], str]:
    """Return the dressed prompt and the reply after it, also where the column begins with an assistant's message."""
    turns = chat_of(row, column, key, where, role="assistant")
    check_answered(turns, column, where)
    *before, last = turns
    if last.tool_calls or last.reasoning_content:
        raise DataError(
            f"{where}: the reply in column {column!r} has {'tool_calls' if last.tool_calls else 'reasoning_content'}; "
            "a reply of a pair is its content alone, so write them into the content"
        )
    if before and before[0].role != "assistant":
        if config.template:
            raise DataError(f"{where}: column {column!r} holds the question, too, so remove template")
        return dressed(config, row, before, where), last.content
    return (*messages_of(config, row, where), *before), last.content


def _margin(config: DatasetConfig, row: Row, where: str) -> float | None:
    if config.margin_column is None:
        return None
    value: Any = column_of(row, config.margin_column, "margin_column", where)
    try:
        margin = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        margin = math.nan
    if not math.isfinite(margin):
        raise DataError(f"{where}: column {config.margin_column!r} must be a number, but reads {short_value(value)}")
    return margin
