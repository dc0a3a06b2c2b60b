"""The desk over which CUDA IPC handles go from the learner to the engines, and receipts come back.

A handle is a few hundred bytes; a `TCPStore` on the rendezvous' port carries it. Both ends are processes of one run.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from rlhf.errors import TransferError
from rlhf.transfer.gloo_group import open_store
from rlhf.types import Rendezvous


class HandleDesk:
    """One member's end of the desk. The learner (rank 0) `offer`s update infos and waits until all others have taken
    each; an engine's worker takes them with `updates`. Raises `TransferError` when the other side does not come within
    the deadline."""

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._store, self._rendezvous = open_store(rank, rendezvous), rendezvous
        self._count = 0

    def offer(self, update: dict[str, Any] | None) -> None:
        """Lay out one update info and wait until every worker has loaded it."""
        self._store.set(f"{self._count}/update", pickle.dumps(update))  # type: ignore[arg-type]
        self._wait(f"{self._count}/taken")
        self._count += 1

    def end(self) -> None:
        """Tell the engines that there is no more in this publish."""
        self.offer(None)

    def updates(self) -> Iterator[dict[str, Any]]:
        """The update infos of one publish; asking for the next one says that the last was loaded."""
        while True:
            self._wait(f"{self._count}/update")
            update = pickle.loads(self._store.get(f"{self._count}/update"))
            if update is not None:
                yield update
            self._take()
            if update is None:
                return

    def _take(self) -> None:
        if self._store.add(f"{self._count}/members", 1) == self._rendezvous.world_size - 1:
            self._store.set(f"{self._count}/taken", "")
        self._count += 1

    def _wait(self, key: str) -> None:
        try:
            self._store.wait([key], timedelta(seconds=self._rendezvous.timeout_seconds))
        except RuntimeError as error:
            raise TransferError(
                f"handle {key} did not come within {self._rendezvous.timeout_seconds:g} s: a peer is gone or hangs"
            ) from error
