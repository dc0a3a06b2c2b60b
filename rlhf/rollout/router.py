"""Route requests over several engines."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from rlhf.protocols import RolloutEngine
from rlhf.types import Completion, Prompt, Sampling

REMEMBERED_SESSIONS = 65_536


class Router:
    """Sends a session to the engine with the fewest requests in flight, and keeps it there: its prefix is cached there.

    The least recently used sessions are forgotten first. Errors of an engine pass through unchanged.
    """

    def __init__(self, engines: Sequence[RolloutEngine], *, remembered_sessions: int = REMEMBERED_SESSIONS) -> None:
        if not engines:
            raise ValueError("a router needs an engine")
        self._engines = tuple(engines)
        self._under_way: Counter[int] = Counter()
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._remembered = remembered_sessions

    async def generate(self, prompt: Prompt, *, sampling: Sampling, seed: int, session: str) -> Completion:
        index = self._home(session)
        self._under_way[index] += 1
        try:
            return await self._engines[index].generate(prompt, sampling=sampling, seed=seed, session=session)
        finally:
            self._under_way[index] -= 1

    def _home(self, session: str) -> int:
        index = self._homes.pop(session, None)
        self._homes[session] = index = self._least_loaded() if index is None else index
        if len(self._homes) > self._remembered:
            self._homes.popitem(last=False)
        return index

    def _least_loaded(self) -> int:
        return min(range(len(self._engines)), key=lambda index: self._under_way[index])
