"""Tracks all connections of one server: their number, the memory that their requests hold, and the log of refusals."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Protocol

from rlhf.http.binding import is_loopback
from rlhf.http.limits import HttpLimits

TOLD_LINES, TOLD_SECONDS = 20, 10.0
"""Refusals that are logged in a period, and its seconds. Further ones are counted, or a flood would fill the disk."""
TOLD_CHARACTERS = 300


class Connection(Protocol):
    """A client's connection, as `Crowd` uses it."""

    def leave(self) -> None:
        """Close it at once."""
        ...


class Crowd:
    """All connections of one server. For one event loop."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.held = Held(limits.waiting_bytes)
        self.told = RefusalLog()
        self._here: dict[Connection, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._resting: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._here)

    def enter(self, connection: Connection, peer: str) -> bool:
        """Whether the connection is accepted. At the limit, the connection idle longest is closed for it."""
        if self._of_peer[peer] >= self.limits.peer_connections and not is_loopback(peer):
            self.told.refused(peer, f"a connection beyond {self.limits.peer_connections} from one address")
            return False
        if len(self._here) >= self.limits.connections:
            if not self._resting:
                self.told.refused(peer, f"a connection beyond {self.limits.connections}")
                return False
            longest = next(iter(self._resting))
            self.leave(longest)
            longest.leave()
        self._here[connection] = peer
        self._of_peer[peer] += 1
        return True

    def leave(self, connection: Connection) -> None:
        """Remove a connection; unknown ones are ignored."""
        self._resting.pop(connection, None)
        if (peer := self._here.pop(connection, None)) is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def rests(self, connection: Connection) -> None:
        """Mark a connection as idle."""
        if connection in self._here:
            self._resting[connection] = None

    def works(self, connection: Connection) -> None:
        """Mark a connection as active."""
        self._resting.pop(connection, None)


class Held:
    """Counts the bytes that the requests of all clients hold in memory."""

    def __init__(self, most: int) -> None:
        self.most, self.now = most, 0

    def take(self, more: int) -> bool:
        """Reserve `more` bytes and return True, or return False without room. A negative number releases bytes."""
        if more > 0 and self.now + more > self.most:
            return False
        self.now += more
        return True


class RefusalLog:
    """Logs refusals: one escaped line each, limited in number per period."""

    def __init__(self) -> None:
        self._log = logging.getLogger("rlhf.http")
        self._since, self._lines, self._untold = 0.0, 0, 0

    def refused(self, peer: str, why: str) -> None:
        """Log one refusal, or count it when the period's lines are used up."""
        now = time.monotonic()
        if now - self._since >= TOLD_SECONDS:
            if self._untold:
                self._log.warning("%d further requests were refused", self._untold)
            self._since, self._lines, self._untold = now, 0, 0
        if self._lines < TOLD_LINES:
            self._lines += 1
            self._log.warning("refused %s: %s", peer, ascii(why)[1:-1][:TOLD_CHARACTERS])
        else:
            self._untold += 1
