"""Room for a message on a stack that is nearly full: one that is half made or half taken would put the processes out of
step."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

ROOM, HIGHEST_LIMIT = 1000, 2**31 - 1


@contextlib.contextmanager
def room_for_a_message() -> Iterator[None]:
    """Raises `RecursionError` before anything has happened."""
    (lambda: (lambda: None)())()  # the old limit could not be set again at its very end
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(min(limit + ROOM, HIGHEST_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
