"""Another worker in the place of one that died."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rlhf.cluster.worker import Cluster, Worker
from rlhf.errors import RlhfError, WorkerDied

STARTS = 3
"""Starts in the place of a worker before the place is given up."""
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Restarts:
    """Starts workers of a role again, each with the arguments `kwargs_of` its index; `tell` gets a line for each."""

    cluster: Cluster
    kwargs_of: Callable[[int], Mapping[str, Any]]
    tell: Callable[[str], None]

    async def after(
        self, death: WorkerDied, worker: Worker, begin: Callable[[Worker], Awaitable[R]]
    ) -> tuple[Worker, R]:
        """Return a worker in the place of one that died, and what `begin` returns of it. Raises `WorkerDied` when none
        of `STARTS` has begun."""
        self.tell(f"{death}; another starts in its place")
        failures = []
        for _ in range(STARTS):
            try:
                worker = await self.cluster.replace(worker, self.kwargs_of)
                return worker, await begin(worker)
            except RlhfError as error:
                failures.append(error)
        raise WorkerDied(death.worker, f"{death.cause}; {STARTS} starts in its place failed: {failures[-1]}")
