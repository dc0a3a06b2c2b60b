"""The key-value store through which members of a process group find each other.

Nothing in it is authenticated: a process that reaches its port can make a weight sync fail, or give it wrong bytes,
which the canary notices. It listens on one interface, and no value in it is ever unpickled.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]

from rlhf.weight_sync.types import GroupAddress

ROOT = 0
"""The rank that hosts the store."""
GIVEN_UP = "given up"
"""A key: all members of the group shall leave it."""


_reserved: list[socket.socket] = []
"""At most one socket, from `reserve` to `open_store`: a port that was only looked up could be taken meanwhile."""


def reserve(host: str) -> GroupAddress:
    """Listen on a free port of `host` until this process opens its store there. Replaces an earlier reservation."""
    listening = _listen(host, 0)
    while _reserved:
        _reserved.pop().close()
    _reserved.append(listening)
    return GroupAddress(host=host, port=listening.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    """Listen on one interface; the store's own socket would listen on every one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


def open_store(rank: int, address: GroupAddress, timeout_seconds: float) -> Any:
    """Return the store at `address`. Rank 0 hosts it there, on no other interface; the others wait for it."""
    host, port, timeout = address.host, address.port, timedelta(seconds=timeout_seconds)
    if rank != ROOT:
        return TCPStore(host, port, is_master=False, timeout=timeout)
    own = _reserved and _reserved[0].getsockname()[:2] == (host, port)
    listening = _reserved.pop() if own else _listen(host, port)
    return TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening.detach()
    )


def give_up(address: GroupAddress) -> None:
    """Have all members leave the group whose store is at `address`; no effect if rank 0 has left it."""
    with suppress(DistError):
        open_store(ROOT + 1, address, timeout_seconds=1).set(GIVEN_UP, "")
