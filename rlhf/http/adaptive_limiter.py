"""An adaptive limit on concurrent calls: it follows the server's capacity, as shown by its answers."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class AdaptiveLimiter:
    """At most `limit` calls run at once, in first-come, first-served order. `busy` halves the limit, once for all calls
    that ran at the same time. Every `limit` answers raise it by one, up to `most`.

    Waiting for admission has no deadline of its own: it ends because every running call has one.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self._inside = self._answered = 0
        self.halvings = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def narrow(self, most: int) -> None:
        """Lower the upper bound to `most`, the capacity that the server stated."""
        self.most = max(1, min(self.most, most))
        self.limit = min(self.limit, self.most)

    def busy(self, halvings: int) -> None:
        """Record that the server was busy for a call that began after `halvings` halvings."""
        if halvings == self.halvings:
            self.limit, self._answered, self.halvings = max(1, self.limit // 2), 0, halvings + 1

    def answered(self) -> None:
        """Record a successful answer."""
        self._answered += 1
        if self._answered >= self.limit < self.most:
            self.limit, self._answered = self.limit + 1, 0

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # admitted at the moment of its cancellation
                self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._inside -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._inside < self.limit:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                self._inside += 1
                turn.set_result(None)
