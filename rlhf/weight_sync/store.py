"""The key-value store through which members of a process group find each other.

Nothing in it is authenticated: a process that reaches its port can make a weight sync fail, or give it wrong bytes,
which the canary notices. It listens on one interface, and no value in it is ever unpickled.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rlhf.weight_sync.types import GroupAddress

ROOT = 0
"""The rank that hosts the store."""


def open_store(rank: int, address: GroupAddress, timeout_seconds: float) -> Any:
    """Return the store at `address`. Rank 0 hosts it there, on no other interface; the others wait for it."""
    host, port, timeout = address.host, address.port, timedelta(seconds=timeout_seconds)
    if rank != ROOT:
        return TCPStore(host, port, is_master=False, timeout=timeout)
    # A socket of our own, because the store's would listen on every interface.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=1024)
    return TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening.detach()
    )
