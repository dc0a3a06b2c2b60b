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
