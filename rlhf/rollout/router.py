"""Route requests over several engines, which may come and go."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from rlhf.errors import EngineBroken, EnginesLost, GenerateFailed, WorkerDied
from rlhf.rollout.engine import Draft
from rlhf.types import Completion, Prompt, Sampling

REMEMBERED_SESSIONS = 65_536
STALE_LOADS = 16
"""Entries of the heap of loads for each engine, after which it is made anew."""
MOST_LOSSES = 3
"""Engines that may be lost with a request before it fails: it may be the cause."""


class DraftingEngine(Protocol):
    """A `RolloutEngine` that can go on after what another has sampled. It raises `EngineBroken` or `WorkerDied` when it
    can answer no further request."""

    name: str

    async def generate(
        self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str, draft: Draft | None = None
    ) -> Completion: ...


class Router:
    """Sends a session to the engine with the fewest requests in flight, and keeps it there: its prefix is cached there.

    The requests of an engine that is lost go on at another, after the tokens that have arrived of them; if none is
    left, they wait for one to be added, or for `end`, if the router `fails_over`; else they raise the loss. The least
    recently used sessions are forgotten first.
    """

    def __init__(self, engines: Iterable[DraftingEngine], *, remembered_sessions: int = REMEMBERED_SESSIONS) -> None:
        self.engines = list(engines)
        self.fails_over = False
        if not self.engines:
            raise ValueError("a router needs an engine")
        self._under_way: Counter[str] = Counter()
        self._working = 0
        self._orders: dict[DraftingEngine, int] = {}
        self._by_load: list[tuple[int, int, DraftingEngine]] = []
        self._busy_seconds, self._counted_at = 0.0, time.monotonic()
        self._homes: OrderedDict[str, DraftingEngine] = OrderedDict()
        self._remembered = remembered_sessions
        self._changed = asyncio.Event()
        self._end: EnginesLost | None = None

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        """Return one reply. Raises `GenerateFailed` for a request with which too many engines were lost, `EnginesLost`
        after `end`, and what else an engine raises."""
        draft, losses, spent = Draft(), 0, 0.0
        while True:
            engine = await self._home(session)
            self._count(engine, 1)
            began = time.monotonic()
            try:
                left = _time_left(sampling, spent) if losses else sampling
                return await engine.generate(prompt, sampling=left, seed=seed, session=session, draft=draft)
            except (EngineBroken, WorkerDied) as error:
                if self.engines == [engine] and not self.fails_over:
                    raise  # it raises its loss for those who come, too
                self.remove(engine)
                losses, spent = losses + 1, spent + time.monotonic() - began
                if losses == MOST_LOSSES:
                    raise GenerateFailed(engine.name, session, f"{losses} engines were lost with it: {error}") from None
            finally:
                self._count(engine, -1)

    def busy_seconds(self) -> float:
        """Return how long engines have had requests, summed over engines."""
        now = time.monotonic()
        self._busy_seconds, self._counted_at = self._busy_seconds + self._working * (now - self._counted_at), now
        return self._busy_seconds

    def add(self, engine: DraftingEngine) -> None:
        """Send requests to this engine, too."""
        self.engines.append(engine)
        self._orders, self._by_load = {}, []
        self._changed.set()

    def remove(self, engine: DraftingEngine) -> None:
        """Send no further request to this engine; no effect if it is removed already."""
        if engine in self.engines:
            self.engines.remove(engine)
            self._orders, self._by_load = {}, []

    def end(self, error: EnginesLost) -> None:
        """Fail all requests that wait for an engine, and all that come."""
        self._end = error
        self._changed.set()

    def _count(self, engine: DraftingEngine, requests: int) -> None:
        self.busy_seconds()  # until now with those that were under way
        before = self._under_way[engine.name]
        self._under_way[engine.name] = after = before + requests
        self._working += (after > 0) - (before > 0)
        if engine in self._orders:
            heapq.heappush(self._by_load, (after, self._orders[engine], engine))

    def _least_loaded(self) -> DraftingEngine:
        """Return the engine with the fewest requests in flight, the first of equal ones. The heap has every load that
        an engine has had since it was made: those that are not true any more are dropped when they come to the top."""
        if not 0 < len(self._by_load) <= STALE_LOADS * len(self.engines):
            self._orders = {engine: order for order, engine in enumerate(self.engines)}
            self._by_load = [(self._under_way[engine.name], order, engine) for engine, order in self._orders.items()]
            heapq.heapify(self._by_load)
        while self._by_load[0][0] != self._under_way[self._by_load[0][2].name]:
            heapq.heappop(self._by_load)
        return self._by_load[0][2]

    async def _home(self, session: str) -> DraftingEngine:
        while not self.engines and not self._end:  # each replacement's start has a deadline, and there are only so many
            self._changed.clear()
            await self._changed.wait()
        if self._end:
            raise self._end
        engine = self._homes.pop(session, None)
        if engine is None or engine not in self.engines:
            engine = self._least_loaded()
        self._homes[session] = engine
        if len(self._homes) > self._remembered:
            self._homes.popitem(last=False)
        return engine


def _time_left(sampling: Sampling, spent: float) -> Sampling:
    """Take the time that a reply has had from what it may have; it has a moment at least, to return what it has."""
    if sampling.max_seconds is None:
        return sampling
    return replace(sampling, max_seconds=max(sampling.max_seconds - spent, 0.01))
