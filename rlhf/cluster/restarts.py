"""Replace workers that were lost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from rlhf.cluster.worker import Cluster, Worker
from rlhf.errors import EngineBroken, RlhfError, WorkerDied

STARTS = 3
"""Failed starts after which a worker is not replaced."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Restarts:
    """Replaces workers; `tell` receives a line about each."""

    cluster: Cluster
    tell: Callable[[str], None]

    async def after(
        self, loss: WorkerDied | EngineBroken, worker: Worker, begin: Callable[[Worker], Awaitable[R]]
    ) -> tuple[Worker, R]:
        """Return the replacement of a lost worker, and what `begin` returns for it. Raises `WorkerDied` when `STARTS`
        starts have failed."""
        began, lost, failure = time.monotonic(), worker.name, ""
        self.tell(f"{loss}; starting a replacement")
        for attempt in range(1, STARTS + 1):
            try:
                worker = await self.cluster.replace(worker)
                begun = await begin(worker)
            except RlhfError as error:
                failure = str(error)
                self.tell(f"start {attempt} of {STARTS} of a replacement for {lost} failed: {failure}")
                continue
            seconds = time.monotonic() - began
            self.tell(f"{worker.name} replaces {lost}, {seconds:.1f} s after it was lost")
            return worker, begun
        await self.cluster.remove(worker)
        raise WorkerDied(lost, f"{loss.cause}; {STARTS} starts of a replacement failed: {failure}")
