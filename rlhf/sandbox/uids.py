"""User ids that belong to one run at a time, for a sandbox that is started as root."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from rlhf.sandbox.program import SandboxBroken

FIRST, COUNT = 64000, 512
"""Within the 16 bits that every container maps, and where distributions give no ids away."""


@contextlib.contextmanager
def lent_uid() -> Iterator[int]:
    """A user id that no other run on this machine has. Raises `SandboxBroken` when all are taken.

    The loan is an abstract socket with its name: the kernel takes it back when this process dies.
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
