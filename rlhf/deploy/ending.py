"""Stop signals of a node: when it must end, with a grace period so that a training on it can leave first."""

from __future__ import annotations

import signal
import time

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """Records the signals that end this process, from its construction on."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._asked_at: float | None = None
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: self._ask())

    def is_asked(self) -> bool:
        """Whether a stop signal has arrived."""
        return self._asked_at is not None

    def is_due(self) -> bool:
        """Whether a stop signal has arrived and the grace period is over."""
        return self._asked_at is not None and time.monotonic() - self._asked_at >= self._grace_seconds

    def _ask(self) -> None:
        self._asked_at = self._asked_at or time.monotonic()
