"""Keep the engines of a run serving: start another in the place of each that is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Protocol

from rlhf.errors import EnginesLost, RlhfError
from rlhf.rollout.engine import RemoteEngine
from rlhf.rollout.router import Router

CANCEL_SECONDS = 1.0
STARTS = 3
"""Starts in the place of an engine before the place is given up."""


class JoinsEngines(Protocol):
    """What brings engines to the learner's weights (`rlhf.weight_sync.publish.Publisher`)."""

    fails_over: bool

    async def join(self, target: RemoteEngine) -> None: ...
    def leave(self, target: RemoteEngine) -> None: ...
    def end(self, error: EnginesLost) -> None: ...


class EngineKeeper:
    """Watches every engine. One that is lost leaves router and publisher; another takes its place (`replace` returns
    it, not started yet), is brought to the current weights, and gets requests. The run ends when fewer than
    `min_engines` places are left."""

    def __init__(
        self,
        router: Router,
        publisher: JoinsEngines,
        replace: Callable[[RemoteEngine], Awaitable[RemoteEngine]],
        *,
        min_engines: int,
        tell: Callable[[str], None],
    ) -> None:
        self._router, self._publisher, self._replace = router, publisher, replace
        self._min_engines, self._tell = min_engines, tell
        self._places = 0

    @asynccontextmanager
    async def keeping(self, engines: Iterable[RemoteEngine]) -> AsyncIterator[None]:
        """Keep these engines until the end of the block."""
        self._router.fails_over = self._publisher.fails_over = True
        keeping = {asyncio.ensure_future(self._keep(engine)) for engine in engines}
        self._places = len(keeping)
        try:
            yield
        finally:
            while keeping:  # `wait_for` of Python 3.11 loses a cancellation that comes with its result
                for task in keeping:
                    task.cancel()
                _, keeping = await asyncio.wait(keeping, timeout=CANCEL_SECONDS)

    async def _keep(self, engine: RemoteEngine | None) -> None:
        """Keep one place: an engine, and those that follow it."""
        while engine:
            error = await engine.until_lost()
            self._router.remove(engine)
            self._publisher.leave(engine)
            self._tell(f"{error}; its requests go on elsewhere, and another engine starts")
            engine = await self._successor(engine, error)

    async def _successor(self, engine: RemoteEngine, cause: RlhfError) -> RemoteEngine | None:
        """Return an engine that serves in the place of one that was lost; None when the place is given up."""
        began, lost = time.monotonic(), engine.name
        for attempt in range(1, STARTS + 1):
            try:
                engine = await self._replace(engine)
                await engine.start()
                started = time.monotonic()
                await self._publisher.join(engine)
            except RlhfError as error:
                cause = error
                self._tell(f"start {attempt} of {STARTS} in the place of {lost} failed: {error}")
                continue
            self._router.add(engine)
            now = time.monotonic()
            self._tell(
                f"{engine.name} serves in the place of {lost}: it started in {started - began:.1f} s, and got the "
                f"weights in {now - started:.1f} s"
            )
            return engine
        self._give_up(lost, cause)
        return None

    def _give_up(self, lost: str, cause: RlhfError) -> None:
        self._places -= 1
        if self._places < self._min_engines:
            error = EnginesLost(
                f"too few engines are left ({self._places}, and rollout.min_engines is {self._min_engines}): none "
                f"starts in the place of {lost}: {cause}"
            )
            self._router.end(error)
            self._publisher.end(error)
