"""Keep the engines of a run serving: start another in the place of each that is lost, add and remove some."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from rlhf.cluster.restarting import STARTS
from rlhf.engines.engine import RemoteEngine
from rlhf.engines.router import Router
from rlhf.errors import EnginesLost, RlhfError, UserError, WorkerDied

CANCEL_SECONDS = 1.0


class JoinsEngines(Protocol):
    """What brings engines to the learner's weights (`rlhf.weight_sync.publish.Publisher`)."""

    fails_over: bool

    async def join(self, target: RemoteEngine) -> None: ...
    def leave(self, target: RemoteEngine) -> None: ...
    def end(self, error: EnginesLost) -> None: ...


class SpawnsEngines(Protocol):
    """Gives engines their processes. `replace` and `add` return an engine that is not started yet."""

    async def replace(self, lost: RemoteEngine) -> RemoteEngine: ...
    async def add(self) -> RemoteEngine: ...
    async def remove(self, engine: RemoteEngine) -> None: ...


class EngineKeeper:
    """Watches every engine. One that is lost leaves router and publisher; another takes its place, is brought to the
    current weights, and gets requests. The run ends when fewer than `min_engines` places are left."""

    def __init__(
        self,
        router: Router,
        publisher: JoinsEngines,
        spawner: SpawnsEngines,
        *,
        min_engines: int,
        tell: Callable[[str], None],
    ) -> None:
        self._router, self._publisher, self._spawner = router, publisher, spawner
        self._min_engines, self._tell = min_engines, tell
        self._places: dict[asyncio.Future[None], RemoteEngine] = {}

    @asynccontextmanager
    async def keeping(self, engines: Iterable[RemoteEngine]) -> AsyncIterator[None]:
        """Keep these engines, and those that are added, until the end of the block."""
        self._router.fails_over = self._publisher.fails_over = True
        for engine in engines:
            self._keep_from_now(engine)
        try:
            yield
        finally:
            await ended(self._places)

    @property
    def serving(self) -> tuple[str, ...]:
        """The names of the engines that get requests."""
        return tuple(engine.name for engine in self._router.engines)

    @property
    def places(self) -> int:
        """The number of engines that serve or are to serve again."""
        return len(self._places)

    async def add(self, count: int) -> None:
        """Start so many more engines, one after the other; each serves once it has the current weights."""
        for _ in range(count):
            engine = await self._spawner.add()
            try:
                await self._serve(engine)
            except RlhfError:
                await self._spawner.remove(engine)
                raise
            self._keep_from_now(engine)
            self._tell(f"{engine.name} was added")

    async def remove(self, name: str) -> None:
        """Remove an engine; its requests go on at the others, after what has arrived of them. Raises `UserError`."""
        found = [task for task, engine in self._places.items() if engine.name == name and not task.done()]
        if not found or name not in self.serving:
            raise UserError(f"no engine {name} serves; there are {', '.join(self.serving)}")
        if len(self.serving) <= self._min_engines:
            raise UserError(f"the run needs {self._min_engines} engines (rollout.min_engines)")
        engine = self._places.pop(found[0])
        found[0].cancel()
        self._router.remove(engine)
        self._publisher.leave(engine)
        engine.lose(WorkerDied(name, "it was removed"))
        await self._spawner.remove(engine)
        self._tell(f"{name} was removed")

    def _keep_from_now(self, engine: RemoteEngine) -> None:
        task = asyncio.ensure_future(self._keep(engine))
        task.add_done_callback(self._ended)
        self._places[task] = engine

    def _ended(self, task: asyncio.Future[None]) -> None:
        """End the run if the keeper of a place failed: nobody would start an engine there."""
        if not task.cancelled() and (error := task.exception()):
            self._end(EnginesLost(f"the keeper of an engine failed: {type(error).__name__}: {error}"))

    def _end(self, error: EnginesLost) -> None:
        self._router.end(error)
        self._publisher.end(error)

    async def _serve(self, engine: RemoteEngine) -> None:
        """Start an engine, give it the current weights, and then requests. Raises its loss if it is lost meanwhile."""
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

    async def _keep(self, engine: RemoteEngine | None) -> None:
        """Keep one place: an engine, and those that follow it."""
        task = asyncio.current_task()
        assert task is not None, "it runs in one"
        while engine:
            self._places[task] = engine
            error = await engine.until_lost()
            self._router.remove(engine)
            self._publisher.leave(engine)
            self._tell(f"{error}; its requests go on elsewhere, and another engine starts")
            engine = await self._successor(engine, error)
        del self._places[task]

    async def _successor(self, engine: RemoteEngine, cause: RlhfError) -> RemoteEngine | None:
        """Return an engine that serves in the place of one that was lost; None when the place is given up."""
        began, lost = time.monotonic(), engine.name
        for attempt in range(1, STARTS + 1):
            try:
                engine = await self._spawner.replace(engine)
                await self._serve(engine)
            except RlhfError as error:
                cause = error
                self._tell(f"start {attempt} of {STARTS} in the place of {lost} failed: {error}")
                continue
            self._tell(
                f"{engine.name} serves in the place of {lost}, {time.monotonic() - began:.1f} s after it was lost"
            )
            return engine
        with suppress(RlhfError):
            await self._spawner.remove(engine)
        self._give_up(lost, cause)
        return None

    def _give_up(self, lost: str, cause: RlhfError) -> None:
        left = len(self._places) - 1
        if left < self._min_engines:
            self._end(
                EnginesLost(
                    f"too few engines are left ({left}, and rollout.min_engines is {self._min_engines}): none starts "
                    f"in the place of {lost}: {cause}"
                )
            )


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    going = {task for task in tasks if not task.done()}
    while going:  # `wait_for` of Python 3.11 loses a cancellation that comes with its result
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=CANCEL_SECONDS)
