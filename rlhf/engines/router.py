"""Route requests over several engines that may come and go and have limited capacity."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rlhf.engines.engine import PartialReply, RemoteEngine
from rlhf.errors import EngineBroken, EnginesLost, GenerateFailed, WorkerDied
from rlhf.tracing import span, trace_worker
from rlhf.types import Completion, PolicyVersion, Prompt, Sampling

REMEMBERED_SESSIONS = 65_536
STALE_LOADS = 16
"""Entries per engine after which the heap of loads is rebuilt."""
MOST_LOSSES = 3
"""A request fails after this many engines were lost while serving it: it may be the cause."""


@dataclass(slots=True)
class _Session:
    """The requests of one episode: `version` is that of the engines at the first one, `home` the engine of the last."""

    version: PolicyVersion
    home: RemoteEngine | None = None


_Waiting = tuple[int, int, _Session, asyncio.Future[RemoteEngine]]
"""A request that waits for a place: its session's version, its number, its session, and the future engine."""


class Router:
    """Sends a session to the engine with the fewest requests in flight, and keeps it there for the cached prefix. When
    all places are taken, requests wait. Those of sessions that began at an older version have priority because they are
    trained first; ties are first come, first served. A session without an engine gets the first free place.

    Another engine continues the requests of a lost one after the tokens that have arrived. If none is left, they wait
    for a new engine or for `end` if the router `fails_over`; else they raise the loss. The least recently used sessions
    are forgotten first.
    """

    def __init__(self, engines: Iterable[RemoteEngine], *, remembered_sessions: int = REMEMBERED_SESSIONS) -> None:
        self.engines = list(engines)
        self.fails_over = False
        if not self.engines:
            raise ValueError("a router needs an engine")
        self._under_way: Counter[str] = Counter()
        self._orders: dict[RemoteEngine, int] = {}
        self._by_load: list[tuple[int, int, RemoteEngine]] = []
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._remembered = remembered_sessions
        self._numbers = itertools.count()
        self._lines: defaultdict[RemoteEngine | None, list[_Waiting]] = defaultdict(list)
        self._end: EnginesLost | None = None
        self.routers = (self,)

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        """Return one reply. Raises `GenerateFailed` for a request that lost too many engines, `EnginesLost` after
        `end`, and what an engine raises."""
        partial, losses, spent = PartialReply(), 0, 0.0
        while True:
            engine = await self._place(session)
            began = time.monotonic()
            try:
                left = _time_left(sampling, spent) if losses else sampling
                with span("reply", detail=True, prompt_tokens=len(prompt.token_ids)):
                    found = await engine.generate(prompt, sampling=left, seed=seed, session=session, partial=partial)
                    trace_worker(found.engine, "generate", found.began, found.seconds)
                    return found
            except (EngineBroken, WorkerDied) as error:
                if self.engines == [engine] and not self.fails_over:
                    raise  # it raises its loss for later requests, too
                self.remove(engine)
                losses, spent = losses + 1, spent + time.monotonic() - began
                if losses == MOST_LOSSES:
                    raise GenerateFailed(
                        engine.name, session, f"{losses} engines were lost while serving it: {error}"
                    ) from None
            finally:
                self._leave(engine)

    def add(self, engine: RemoteEngine) -> None:
        """Send requests to this engine, too."""
        self.engines.append(engine)
        self._orders, self._by_load = {}, []
        self._fill(engine)

    def remove(self, engine: RemoteEngine) -> None:
        """Send no further request to this engine; no effect if it is removed already."""
        if engine in self.engines:
            self.engines.remove(engine)
            self._orders, self._by_load = {}, []
            for waiting in self._lines.pop(engine, ()):
                heapq.heappush(self._lines[None], waiting)
            for other in self.engines:
                self._fill(other)

    def end(self, error: EnginesLost) -> None:
        """Fail all requests that wait for an engine, and all later ones."""
        self._end = error
        for _, _, _, place in itertools.chain.from_iterable(self._lines.values()):
            if not place.done():
                place.set_exception(error)

    async def _place(self, name: str) -> RemoteEngine:
        """Take a place at the engine of a session, waiting if there is none."""
        if self._end:
            raise self._end
        session = self._sessions.pop(name, None) or _Session(self.engines[0].version if self.engines else 0)
        self._sessions[name] = session
        if len(self._sessions) > self._remembered:
            self._sessions.popitem(last=False)
        if session.home and session.home not in self.engines:
            session.home = None
        engine = session.home or (self._least_loaded() if self.engines else None)
        if engine and self._under_way[engine.name] < engine.places:
            return self._enter(session, engine)
        place: asyncio.Future[RemoteEngine] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._lines[session.home], (session.version, next(self._numbers), session, place))
        try:  # every reply has a deadline, and so has each replacement's start
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and not place.exception():
                self._leave(place.result())
            raise

    def _enter(self, session: _Session, engine: RemoteEngine) -> RemoteEngine:
        session.home = engine
        self._count(engine, 1)
        return engine

    def _leave(self, engine: RemoteEngine) -> None:
        self._count(engine, -1)
        if (self._lines.get(engine) or self._lines[None]) and engine in self.engines:
            self._fill(engine)

    def _fill(self, engine: RemoteEngine) -> None:
        """Give an engine's free places to the requests that wait for it or for any engine, in order."""
        while self._under_way[engine.name] < engine.places:
            lines = [line for line in (self._lines[engine], self._lines[None]) if line]
            if not lines:
                return
            _, _, session, place = heapq.heappop(min(lines, key=lambda line: line[0][:2]))
            if not place.done():  # cancelled
                place.set_result(self._enter(session, engine))

    def _count(self, engine: RemoteEngine, requests: int) -> None:
        self._under_way[engine.name] += requests
        if engine in self._orders:
            heapq.heappush(self._by_load, (self._under_way[engine.name], self._orders[engine], engine))

    def _least_loaded(self) -> RemoteEngine:
        """Return the engine with the fewest requests in flight, the first of equal ones. The heap has every load that
        an engine has had since the heap was built; outdated entries are dropped when they reach the top."""
        if not 0 < len(self._by_load) <= STALE_LOADS * len(self.engines):
            self._orders = {engine: order for order, engine in enumerate(self.engines)}
            self._by_load = [(self._under_way[engine.name], order, engine) for engine, order in self._orders.items()]
            heapq.heapify(self._by_load)
        while self._by_load[0][0] != self._under_way[self._by_load[0][2].name]:
            heapq.heappop(self._by_load)
        return self._by_load[0][2]


class RouterByPolicy:
    """Sends the requests of each policy to the router of the engines that hold it."""

    def __init__(self, routers: Mapping[str, Router]) -> None:
        self._routers = routers
        self.routers = tuple(dict.fromkeys(routers.values()))

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        router = self._routers[prompt.policy]
        return await router.generate(prompt, sampling=sampling, seed=seed, session=session)


def _time_left(sampling: Sampling, spent: float) -> Sampling:
    """Subtract the elapsed time from a reply's deadline; a moment remains to return its tokens."""
    if sampling.max_seconds is None:
        return sampling
    return replace(sampling, max_seconds=max(sampling.max_seconds - spent, 0.01))
