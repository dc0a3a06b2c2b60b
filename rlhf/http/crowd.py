"""All connections of a server together: how many there are, how much they hold, and what is told of those refused."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Protocol

from rlhf.http.binding import is_loopback
from rlhf.http.limits import HttpLimits

TOLD_LINES, TOLD_SECONDS = 20, 10.0
"""So many refusals are told in so many seconds; the others are counted, or a flood would fill the log's disk."""
TOLD_CHARACTERS = 300


class Connection(Protocol):
    """Somebody's connection."""

    def leave(self) -> None:
        """Close it at once."""
        ...


class Crowd:
    """Everybody who is connected to one server. For one event loop."""

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
        """Whether there is a place for it, made by the connection that rests longest where there is none."""
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
        """It is gone; one that is not here may be told of too."""
        self._resting.pop(connection, None)
        if (peer := self._here.pop(connection, None)) is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def rests(self, connection: Connection) -> None:
        """Nothing is under way on it, from now on."""
        if connection in self._here:
            self._resting[connection] = None

    def works(self, connection: Connection) -> None:
        self._resting.pop(connection, None)


class Held:
    """Bytes that wait in memory for their turn, of all clients together."""

    def __init__(self, most: int) -> None:
        self.most, self.now = most, 0

    def take(self, more: int) -> bool:
        """Whether there is room for `more`, which are then held; a negative number gives back."""
        if more > 0 and self.now + more > self.most:
            return False
        self.now += more
        return True


class RefusalLog:
    """The log of refusals: one line each, escaped, and only so many in a while."""

    def __init__(self) -> None:
        self._log = logging.getLogger("rlhf.http")
        self._since, self._lines, self._untold = 0.0, 0, 0

    def refused(self, peer: str, why: str) -> None:
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
