"""An event loop whose time jumps to the next timer, and work that takes time on it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import selectors
from collections.abc import Callable

from rlhf.errors import UserError

Selected = list[tuple[selectors.SelectorKey, int]]


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait: it adds the time that it should have waited to `now`."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Selected:
        if timeout is None:
            raise UserError("the simulated run waits for what never comes; check the recipe's limits")
        if timeout > 0:
            self.now = math.nextafter(self.now + timeout, math.inf)  # a sum that is rounded down would not be there yet
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Runs what only waits for timers as fast as it computes. Its `time` begins at 0."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


ROUNDING = 1e-6
"""Units by which a sum of floats may fall short."""


class Flow:
    """Pieces of work that advance together, in units. `done` counts the units since the beginning; a piece of n units
    ends when they have grown by n. The next `heavy` units take longer than the others."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._done, self.heavy, self._at = 0.0, 0.0, self._loop.time()
        self._speed, self._seconds, self._heavy_seconds = 0.0, 1.0, 1.0
        self._pieces: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def done(self) -> float:
        self._advance()
        return self._done

    def run(self, speed: float, seconds: float = 1.0, heavy_seconds: float = 1.0) -> None:
        """Go on with so many seconds a unit at a speed of 1; at 0 everything stands still."""
        self._advance()
        self._speed, self._seconds, self._heavy_seconds = speed, seconds, heavy_seconds
        self._set_timer()

    def add_heavy(self, units: float) -> float:
        """Let more of the next units be heavy ones. Return how many there are now."""
        self._advance()
        self.heavy += units
        return self.heavy

    def piece(self, units: float) -> asyncio.Future[None]:
        """Return a future that is done when so many units are."""
        piece = self._loop.create_future()
        heapq.heappush(self._pieces, (self.done + units, next(self._numbers), piece))
        self._set_timer()
        return piece

    def fail(self, error: Exception) -> None:
        """Fail all pieces."""
        pieces, self._pieces, self.heavy = self._pieces, [], 0.0
        for _, _, piece in pieces:
            if not piece.done():
                piece.set_exception(error)

    def _advance(self) -> None:
        worked, self._at = self._speed * (self._loop.time() - self._at), self._loop.time()
        heavy = min(worked / self._heavy_seconds, self.heavy)
        self.heavy -= heavy
        self._done += heavy + (worked - heavy * self._heavy_seconds) / self._seconds

    def _set_timer(self) -> None:
        """Wake up when the next piece ends; to wake up earlier does no harm."""
        if not self._pieces or not self._speed:
            return
        units = max(self._pieces[0][0] - self._done, 0.0)
        heavy = min(units, self.heavy)
        due = self._at + (heavy * self._heavy_seconds + (units - heavy) * self._seconds) / self._speed
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._advance()
        while self._pieces and self._pieces[0][0] <= self._done + ROUNDING:
            piece = heapq.heappop(self._pieces)[2]
            if not piece.done():
                piece.set_result(None)
        self._set_timer()


class Cores:
    """Cores that workers share: each that has work takes its threads, and all are slowed down alike where there are too
    few."""

    def __init__(self, count: float) -> None:
        self._count, self._threads = count, 0.0
        self._changed: list[Callable[[], None]] = []

    @property
    def share(self) -> float:
        """The part of its speed that each worker has."""
        return min(1.0, self._count / self._threads) if self._threads else 1.0

    def tell(self, changed: Callable[[], None]) -> None:
        """Call this whenever the share has changed."""
        self._changed.append(changed)

    def take(self, threads: float) -> None:
        """Take so many threads more, or give them back if negative."""
        before = self.share
        self._threads += threads
        if self.share != before:
            for changed in self._changed:
                changed()
