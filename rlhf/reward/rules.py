"""Rules that need no library. Every scorer, built in or custom, is a function `(response, row) -> float`; for the
built-in ones `row["answer"]` is the task's reference answer, and `row["pattern"]` the recipe's pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlhf.chat.thinking import after_thinking, where_thinking_ends
from rlhf.errors import NoReference


def reference_of(row: Mapping[str, Any]) -> str:
    """Return the stripped reference answer. Raises `NoReference` for an empty one, which an empty reply would equal."""
    reference = str(row["answer"]).strip()
    if not reference:
        raise NoReference("the reference answer is empty")
    return reference


def exact(response: str, row: Mapping[str, Any]) -> float:
    """1 when the reply, after its thinking, equals the answer, ignoring surrounding whitespace; else 0."""
    return float(after_thinking(response).strip() == reference_of(row))


def zero_reward(response: str, row: Mapping[str, Any]) -> float:
    """0 for every reply, for training that reads no reward."""
    return 0.0


def regex(response: str, row: Mapping[str, Any]) -> float:
    """1 when the pattern is found; with a group, when the group of its last match equals the answer: people and models
    state their answer at the end. A match must end after the thinking, and its group must be there."""
    said, pattern = where_thinking_ends(response), re.compile(row["pattern"])
    reference = reference_of(row) if pattern.groups else ""
    matches = [match for match in pattern.finditer(response) if said is not None and match.end() >= said]
    if not matches or pattern.groups == 0:
        return float(bool(matches))
    found = matches[-1][1] if matches[-1].start(1) >= (said or 0) else None
    return float((found or "").strip() == reference)


def tagged_blocks(response: str, row: Mapping[str, Any]) -> float:
    """1 when the reply consists of one block `<tag>…</tag>` for each of `row["tags"]`, in order, none empty, and
    whitespace, and after them text if `row["text_after"]`; else 0. A tag within a block counts as a second one, so that
    it hides no answer. Linear."""
    rest = response.strip()
    for tag in row["tags"]:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if response.count(opening) != 1 or response.count(closing) != 1 or not rest.startswith(opening):
            return 0.0
        content, closed, rest = rest.removeprefix(opening).partition(closing)
        if (
            not closed
            or not content.strip()
            or any(f"<{tag}>" in content or f"</{tag}>" in content for tag in row["tags"])
        ):
            return 0.0
        rest = rest.lstrip()
    return float(bool(rest) == row["text_after"])
