"""A private gloo group of one learner rank and the engines' workers, separate from every default process group.

In local mode two members may be threads of one process. Every call ends within the group's deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo

from rlhf.cluster.interfaces import interface_toward
from rlhf.errors import TransferError
from rlhf.models.torch_internals import gloo_options
from rlhf.weight_sync.store import ROOT, open_store
from rlhf.weight_sync.types import Rendezvous


class GlooGroup:
    """Membership in the group as `rank`. Raises `TransferError` when the other members do not join in time."""

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self.device = torch.device("cpu")
        self._timeout_seconds = rendezvous.timeout_seconds
        address = rendezvous.address
        member = f"rank {rank} of {rendezvous.world_size}"
        with self._named(f"joining the transfer group at {address.host}:{address.port} as {member}"):
            options = gloo_options(interface_toward(address.host).address, rendezvous.timeout_seconds)
            store = open_store(rank, address, rendezvous.timeout_seconds)
            self._group: Any = ProcessGroupGloo(store, rank, rendezvous.world_size, options)
        self._started: deque[Any] = deque()

    def start_broadcast(self, buffer: Tensor) -> None:
        """Start to send (rank 0) or receive `buffer` in place."""
        with self._named("a broadcast"):
            self._started.append(self._group.broadcast(buffer, ROOT))

    def start_barrier(self) -> None:
        """Start a barrier: it ends when every member has started it."""
        with self._named("the barrier at the end"):
            # An all-reduce instead of gloo's barrier, because the barrier ignores the group's deadline.
            self._started.append(self._group.allreduce(torch.zeros(1)))

    def finish_next(self) -> None:
        """Wait for the oldest of what was started; only then may anything read or write its buffer."""
        with self._named("a broadcast"):
            self._started.popleft().wait(timedelta(seconds=self._timeout_seconds))

    def close(self) -> None:
        """Close the connections at once, so that peers notice, even if something still refers to this object (a
        traceback)."""
        self._started.clear()
        self._group = None

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise TransferError(
                f"{what} failed: a peer is gone, or hangs for {self._timeout_seconds:g} s ({first_line})"
            ) from error
