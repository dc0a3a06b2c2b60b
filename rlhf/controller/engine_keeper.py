"""Keep the engines of a run serving: replace each that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from rlhf.cluster.restarts import Restarts
from rlhf.cluster.worker import Worker
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router
from rlhf.errors import EnginesLost, WorkerDied
from rlhf.weight_sync.publish import Publisher

CANCEL_SECONDS = 1.0


class EngineKeeper:
    """Watches every engine. A lost engine leaves router and publisher; its replacement gets the current weights, then
    requests. The run ends when fewer than `min_engines` are left."""

    def __init__(self, router: Router, publisher: Publisher, restarts: Restarts, *, min_engines: int) -> None:
        self._router, self._publisher, self._restarts = router, publisher, restarts
        self._min_engines, self._places = min_engines, 0

    @asynccontextmanager
    async def keeping(self, engines: Iterable[RemoteEngine]) -> AsyncIterator[None]:
        """Keep these engines until the end of the block."""
        self._router.fails_over = self._publisher.fails_over = True
        tasks = [asyncio.ensure_future(self._keep(engine)) for engine in engines]
        self._places = len(tasks)
        for task in tasks:
            task.add_done_callback(self._ended)
        try:
            yield
        finally:
            await ended(tasks)

    def _ended(self, task: asyncio.Future[None]) -> None:
        """End the run if a keeper failed: its engine would not be replaced."""
        if not task.cancelled() and (error := task.exception()):
            self._end(EnginesLost(f"the keeper of an engine failed: {type(error).__name__}: {error}"))

    def _end(self, error: EnginesLost) -> None:
        self._router.end(error)
        self._publisher.end(error)

    async def _keep(self, engine: RemoteEngine) -> None:
        """Keep an engine and its replacements, until none starts."""
        while True:
            loss = await engine.until_lost()
            self._router.remove(engine)
            self._publisher.leave(engine)
            try:
                _, engine = await self._restarts.after(loss, engine.worker, partial(self._serve, engine))
            except WorkerDied as error:
                return self._give_up(error)

    async def _serve(self, lost: RemoteEngine, worker: Worker) -> RemoteEngine:
        """Start an engine in a worker, give it the current weights, and then requests. Raises its loss if it is lost
        meanwhile."""
        engine = lost.follow(worker)
        await engine.start()
        joining, losing = (
            asyncio.ensure_future(self._publisher.join(engine)),
            asyncio.ensure_future(engine.until_lost()),
        )
        try:
            await asyncio.wait((joining, losing), return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                self._publisher.leave(engine)
                raise losing.result()
            joining.result()
        finally:
            await ended((joining, losing))
        self._router.add(engine)
        return engine

    def _give_up(self, cause: WorkerDied) -> None:
        self._places -= 1
        if self._places < self._min_engines:
            left = f"{self._places}, but rollout.min_engines is {self._min_engines}"
            self._end(EnginesLost(f"too few engines are left ({left}): {cause}"))


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    going = {task for task in tasks if not task.done()}
    while going:  # `wait_for` of Python 3.11 loses a cancellation that comes with its result
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=CANCEL_SECONDS)
