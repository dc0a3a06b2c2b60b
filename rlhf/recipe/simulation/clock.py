"""An event loop whose time jumps to the next timer, and work that takes time on it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import selectors

from rlhf.errors import UserError

ROUNDING = 1e-6
"""Units by which a sum of floats may fall short."""


class JumpingSelector(selectors.DefaultSelector):
    """Does not wait: it adds the time that it should have waited to `now`."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
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


class Cores:
    """Cores that workers share: all that work are slowed down alike, to this `share`, where they are too few."""

    def __init__(self, count: float) -> None:
        self._count, self._threads, self.share = count, 0.0, 1.0
        self.flows: list[Flow] = []

    def take(self, threads: float) -> None:
        """Take so many threads more, or give them back if negative."""
        self._threads += threads
        share = min(1.0, self._count / self._threads) if self._threads else 1.0
        if share != self.share:
            for flow in self.flows:
                flow.advance()
            self.share = share
            for flow in self.flows:
                flow.set_timer()


class Flow:
    """A worker's pieces of work, which advance together, in units. `advance` counts the units since the beginning; a
    piece of n units ends when they have grown by n. Seconds that it owes are worked off first."""

    def __init__(self, cores: Cores, threads: float) -> None:
        self._loop, self._cores, self._threads = asyncio.get_running_loop(), cores, threads
        self._done, self._owed, self._at = 0.0, 0.0, self._loop.time()
        self._works, self._seconds = False, 1.0
        self._pieces: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers, self._timer = itertools.count(), self._loop.call_soon(int)
        cores.flows.append(self)

    def advance(self) -> float:
        """Return the units that are done by now."""
        worked = self._cores.share * self._works * (self._loop.time() - self._at)
        self._at, owed = self._loop.time(), min(worked, self._owed)
        self._owed -= owed
        self._done += (worked - owed) / self._seconds
        return self._done

    def run(self, works: bool, seconds: float = 1.0) -> None:
        """Go on with so many seconds a unit on cores of its own, or stand still and give the cores back."""
        self.advance()
        if works != self._works:
            self._cores.take(self._threads if works else -self._threads)
        self._works, self._seconds = works, seconds
        self.set_timer()

    def owe(self, seconds: float) -> None:
        """Work for so many seconds before the units go on."""
        self.advance()
        self._owed += seconds

    def piece(self, units: float) -> asyncio.Future[None]:
        """Return a future that is done when so many units are."""
        piece = self._loop.create_future()
        heapq.heappush(self._pieces, (self.advance() + units, next(self._numbers), piece))
        self.set_timer()
        return piece

    def fail(self, error: Exception) -> None:
        """Fail all pieces."""
        pieces, self._pieces, self._owed = self._pieces, [], 0.0
        for _, _, piece in pieces:
            if not piece.done():
                piece.set_exception(error)

    def set_timer(self) -> None:
        """Wake up when the next piece ends."""
        self._timer.cancel()
        if self._pieces and self._works:
            seconds = self._owed + max(self._pieces[0][0] - self._done, 0.0) * self._seconds
            self._timer = self._loop.call_at(self._at + seconds / self._cores.share, self._wake)

    def _wake(self) -> None:
        self.advance()
        while self._pieces and self._pieces[0][0] <= self._done + ROUNDING:
            piece = heapq.heappop(self._pieces)[2]
            if not piece.done():
                piece.set_result(None)
        self.set_timer()
