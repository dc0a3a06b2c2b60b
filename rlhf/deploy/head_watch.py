"""Whether the head of a cluster is still there, as seen from another node."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from rlhf.deploy.rendezvous import HeadAddress, read_head_address
from rlhf.errors import RendezvousError

KNOCK_SECONDS = 5.0
REFUSALS = 2
"""Connections refused one after the other that mean that nobody listens any more."""
SILENCE_SECONDS = 20.0
"""A head that answers for so long neither yes nor no is beyond reach."""
TIDY_SECONDS = 5.0
"""How long the end of a head takes to show in a folder shared over a network."""


class HeadWatch:
    """Knocks at the head's door; `gone` says how it left, empty while it is there."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._door = (host, int(port))
        self._refused = 0
        self._heard_at = time.monotonic()
        self._gone = ""

    def gone(self) -> str:
        """Knock once, until it is gone."""
        self._gone = self._gone or self._knocked()
        return self._gone

    def _knocked(self) -> str:
        """A refusal is the word of the head's machine; silence may be the network's."""
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
    """Whether the head took its rendezvous file away, or another head of the run has written its own."""
    deadline = time.monotonic() + TIDY_SECONDS
    while time.monotonic() < deadline:
        try:
            if read_head_address(path, joined.run) != joined:
                return True
        except RendezvousError:
            return True
        time.sleep(0.2)
    return False
