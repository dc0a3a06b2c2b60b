"""Checks from another node whether the head of a cluster still runs."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from rlhf.deploy.rendezvous import HeadAddress, read_head_address
from rlhf.errors import RendezvousError

KNOCK_SECONDS = 5.0
REFUSALS = 2
"""Number of consecutive refused connections after which the head counts as ended."""
SILENCE_SECONDS = 20.0
"""Seconds without any answer after which the head counts as unreachable."""
TIDY_SECONDS = 5.0
"""Seconds until the removal of the head's file is visible in a folder shared over a network."""


class HeadWatch:
    """Checks the head by TCP connections. `gone` says how it was lost; it is empty while the head runs."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._door = (host, int(port))
        self._refused = 0
        self._heard_at = time.monotonic()
        self._gone = ""

    def gone(self) -> str:
        """Connect once, unless the head is already known to be lost."""
        self._gone = self._gone or self._knocked()
        return self._gone

    def _knocked(self) -> str:
        """A refused connection is an answer of the head's machine; no answer may be a network failure."""
        try:
            socket.create_connection(self._door, timeout=KNOCK_SECONDS).close()
        except ConnectionRefusedError:
            self._refused += 1
            return "nobody listens there any more" if self._refused >= REFUSALS else ""
        except OSError:
            silent = time.monotonic() - self._heard_at
            return f"no answer for {silent:.0f} s" if silent > SILENCE_SECONDS else ""
        self._refused, self._heard_at = 0, time.monotonic()
        return ""


def ended_cleanly(path: Path, joined: HeadAddress) -> bool:
    """Whether the head removed its rendezvous file, or another head of the run has written a new one."""
    deadline = time.monotonic() + TIDY_SECONDS
    while time.monotonic() < deadline:
        try:
            if read_head_address(path, joined.run) != joined:
                return True
        except RendezvousError:
            return True
        time.sleep(0.2)
    return False
