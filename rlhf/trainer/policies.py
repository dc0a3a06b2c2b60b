"""Several policies over one base: adapters that share the ranks, and are trained one after another."""

from __future__ import annotations

from typing import Any

from rlhf.cluster.worker import Worker
from rlhf.errors import WorkerDied


class PolicyWorker:
    """A `Worker` for one of its policies: calls go to that policy's part of it (`LearnerWorker.divide`)."""

    def __init__(self, worker: Worker, policy: str) -> None:
        self.name, self._worker, self._part = worker.name, worker, f"policies.{policy}"

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        return await self._worker.call(f"{self._part}.{method}", *args, timeout_seconds=timeout_seconds, **kwargs)

    async def until_death(self) -> WorkerDied:
        return await self._worker.until_death()
