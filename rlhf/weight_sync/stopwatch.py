"""Add up the seconds of work done in many small parts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rlhf.weight_sync.types import Seconds

T = TypeVar("T")


class Stopwatch:
    """Seconds by name."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Add the block's time to `name`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - began

    def drawn(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Iterate over the items; the time to produce each is added to `name`."""
        source = iter(items)
        while True:
            with self.timing(name):
                item = next(source, None)
            if item is None:
                return
            yield item

    def taken(self) -> Seconds:
        """Return the seconds since the last call."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return seconds
