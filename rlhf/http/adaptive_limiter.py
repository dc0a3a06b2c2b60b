"""How many calls are in flight: as many as the server can take, found out from what it says."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class AdaptiveLimiter:
    """At most `limit` inside at once, first come, first served. `busy` halves the limit, once for
    all calls that were inside together, and every `limit` answers raise it by one, up to `most`.

    Waiting has no deadline of its own: it ends because every call inside has one.
    """

    def __init__(self, most: int) -> None:
        self.most = self.limit = most
        self._inside = self._answered = 0
        self.halvings = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def narrow(self, most: int) -> None:
        """Never more than `most` from here on: the server has said so."""
        self.most = max(1, min(self.most, most))
        self.limit = min(self.limit, self.most)

    def busy(self, halvings: int) -> None:
        """The server had no place for a call that began after so many `halvings`."""
        if halvings == self.halvings:
            self.limit, self._answered, self.halvings = max(1, self.limit // 2), 0, halvings + 1

    def answered(self) -> None:
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
            if not turn.cancelled():  # its turn had come when it was given up
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
