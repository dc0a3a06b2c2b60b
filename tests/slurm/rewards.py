"""A reward that takes its time, so that a run lasts as long on a fast machine as on a slow one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tests.end_to_end.rewards import varied

SECONDS = 0.025


def unhurried(response: str, row: Mapping[str, Any]) -> float:
    """A number in [0, 1) that depends on every character."""
    time.sleep(SECONDS)
    return varied(response, row)
