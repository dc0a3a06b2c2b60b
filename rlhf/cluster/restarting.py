"""Another worker in the place of one that was lost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rlhf.cluster.worker import Cluster, Worker
from rlhf.errors import EngineBroken, RlhfError, WorkerDied

STARTS = 3
"""Starts in the place of a worker before the place is given up."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Restarts:
    """Starts workers again; `tell` gets a line about each."""

    cluster: Cluster
    tell: Callable[[str], None]

    async def after(
        self, loss: WorkerDied | EngineBroken, worker: Worker, begin: Callable[[Worker], Awaitable[R]]
    ) -> tuple[Worker, R]:
        """Return a worker in the place of one that was lost, and what `begin` returns of it. Raises `WorkerDied` when
        none of `STARTS` has begun."""
        began, lost, failure = time.monotonic(), worker.name, ""
        self.tell(f"{loss}; another starts in its place")
        for attempt in range(1, STARTS + 1):
            try:
                worker = await self.cluster.replace(worker)
                begun = await begin(worker)
            except RlhfError as error:
                failure = str(error)
                self.tell(f"start {attempt} of {STARTS} in the place of {lost} failed: {failure}")
                continue
            seconds = time.monotonic() - began
            self.tell(f"{worker.name} serves in the place of {lost}, {seconds:.1f} s after it was lost")
            return worker, begun
        await self.cluster.remove(worker)
        raise WorkerDied(lost, f"{loss.cause}; {STARTS} starts in its place failed: {failure}")
