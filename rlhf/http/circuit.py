"""A circuit breaker: after repeated failures a server is not called for a while, and calls fail with a named error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rlhf.errors import HttpFailed
from rlhf.http.failures import ALIVE


class Circuit:
    """Closed until `failure_threshold` calls failed in a row. Then it is open, and calls fail at once as `open`. After
    `reset_seconds` one call at a time is allowed: its success closes the circuit, its failure opens it again."""

    def __init__(self, where: str, *, failure_threshold: int, reset_seconds: float, clock: Callable[[], float]) -> None:
        self._where, self._clock = where, clock
        self._failure_threshold, self._reset_seconds = failure_threshold, reset_seconds
        self._failed_in_a_row = 0
        self._closes_at: float | None = None
        self._probing = False
        self._last: HttpFailed | None = None

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Guards one call with all its attempts. Raises `HttpFailed("open")` instead of starting it while the circuit
        is open."""
        probe = self._admit()
        try:
            yield
        except HttpFailed as failure:
            self._succeeded() if failure.kind in ALIVE else self._failed(failure)
            raise
        else:
            self._succeeded()
        finally:
            self._probing = self._probing and not probe

    def _admit(self) -> bool:
        """Whether this call is the probe of a server whose circuit was open."""
        if self._closes_at is None:
            return False
        left = self._closes_at - self._clock()
        if left > 0 or self._probing:
            raise HttpFailed(self._where, "open", self._why())
        self._probing = True
        return True

    def _succeeded(self) -> None:
        self._failed_in_a_row, self._closes_at = 0, None

    def _failed(self, failure: HttpFailed) -> None:
        self._failed_in_a_row += 1
        self._last = failure
        if self._failed_in_a_row >= self._failure_threshold:
            self._closes_at = self._clock() + self._reset_seconds

    def _why(self) -> str:
        last = f"{self._last.kind}: {self._last.detail}" if self._last else "unknown"
        return f"{self._failed_in_a_row} calls failed in a row, the last by {last}"
