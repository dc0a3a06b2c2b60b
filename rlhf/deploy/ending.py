"""When a node ends that is asked to: at once, or a while later, so that a training on it can leave first."""

from __future__ import annotations

import signal
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """Hears the signals that end this process, from the moment on that it is made."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._asked_at: float | None = None
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: self._ask())

    def is_asked(self) -> bool:
        return self._asked_at is not None

    def is_due(self) -> bool:
        """Asked, and the grace is over."""
        return self._asked_at is not None and time.monotonic() - self._asked_at >= self._grace_seconds

    def _ask(self) -> None:
        self._asked_at = self._asked_at or time.monotonic()
