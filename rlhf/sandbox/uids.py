"""Lends user ids that belong to one run at a time, for a sandbox started as root."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from rlhf.sandbox.program import SandboxBroken

FIRST, COUNT = 64000, 512
"""In the 16-bit range that every container maps, and outside the ranges that distributions assign."""


@contextlib.contextmanager
def lent_uid() -> Iterator[int]:
    """A user id that no other run on this machine has. Raises `SandboxBroken` when all are in use.

    The loan is an abstract unix socket named after the id: the kernel releases it when this process dies.
    """
    for uid in range(FIRST, FIRST + COUNT):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0rlhf-sandbox-uid-{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxBroken(f"{COUNT} runs have a user id already")
