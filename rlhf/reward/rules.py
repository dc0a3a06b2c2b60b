"""Rules that need no library. Every scorer, built in or custom, is a function `(response, row) -> float`.

For the built-in ones `row["answer"]` is the task's reference answer, and `row["pattern"]` the recipe's pattern.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def exact(response: str, row: Mapping[str, Any]) -> float:
    """1 when the reply equals the answer, ignoring surrounding whitespace; else 0."""
    return float(response.strip() == row["answer"].strip())


def zero_reward(response: str, row: Mapping[str, Any]) -> float:
    """0 for every reply, for training that reads no reward."""
    return 0.0


def regex(response: str, row: Mapping[str, Any]) -> float:
    """1 when the pattern is found; with a group, when the group of its last match equals the answer.

    The last match counts because people and models state their answer at the end.
    """
    pattern = re.compile(row["pattern"])
    matches = list(pattern.finditer(response))
    if not matches or pattern.groups == 0:
        return float(bool(matches))
    return float((matches[-1][1] or "").strip() == row["answer"].strip())


def tagged_blocks(response: str, row: Mapping[str, Any]) -> float:
    """1 when the reply consists of one block `<tag>…</tag>` for each of `row["tags"]`, in order, none empty, with only
    whitespace between them; else 0. A tag within a block counts as a second one, so an answer cannot be hidden in
    another block. Linear in the length of the reply."""
    rest = response.strip()
    for tag in row["tags"]:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if response.count(opening) != 1 or response.count(closing) != 1 or not rest.startswith(opening):
            return 0.0
        content, closed, rest = rest.removeprefix(opening).partition(closing)
        if not closed or not content.strip() or _has_tag(content, row["tags"]):
            return 0.0
        rest = rest.lstrip()
    return float(not rest)


def _has_tag(content: str, tags: tuple[str, ...]) -> bool:
    return any(mark in content for tag in tags for mark in (f"<{tag}>", f"</{tag}>"))
