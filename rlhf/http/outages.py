"""Outages of servers: calls wait until their server answers again, for a limited time in each outage."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rlhf.errors import HttpFailed
from rlhf.untrusted_text import escape_to_line

RETRIED = frozenset({"refused", "busy", "timeout", "lost", "server"})
"""Kinds of failure after which another attempt may succeed."""
OF_REQUESTS = frozenset({"timeout", "server"})
"""Those of them that are the request's fault where the server answers another request at once."""
ROUNDS = 3
"""Attempts for one call: a request may itself crash its server each time."""


class JsonRequest(NamedTuple):
    method: str
    url: str
    body: Any


@dataclass(slots=True, kw_only=True)
class Outages:
    """How long a run waits for servers that do not answer: `seconds` for each outage. `tell` receives a line at its
    start and one at its end; `out` has the servers that do not answer now."""

    seconds: float
    tell: Callable[[str], None]
    out: set[str] = field(default_factory=set)


class Availability:
    """Distinguishes an outage of one server from a request that it cannot answer: after a failure, the server gets a
    request that it has answered before. In an outage one caller asks every `pause_seconds`; the others wait."""

    def __init__(
        self, server: str, ask: Callable[[JsonRequest], Awaitable[Any]], outages: Outages, pause_seconds: float
    ) -> None:
        self._server, self._ask, self._outages, self._pause_seconds = server, ask, outages, pause_seconds
        self._asking = asyncio.Lock()
        self._known: JsonRequest | None = None
        self._began: float | None = None
        self._answered = self._ended = -math.inf

    async def call(self, request: JsonRequest, attempts: Callable[[], Awaitable[Any]], left: int = ROUNDS - 1) -> Any:
        """Return the result of `attempts`, repeated after an outage. Raises `HttpFailed`, of kind `outage` after an
        outage of more than `seconds`."""
        began = time.monotonic()
        try:
            answer = await attempts()
        except HttpFailed as failure:
            if failure.kind not in RETRIED:
                self._note_answer()
                raise
            await self._wait(failure, request)
            if not left or (failure.kind in OF_REQUESTS and self._ended < began):
                raise
        else:
            self._known = request
            self._note_answer()
            return answer
        return await self.call(request, attempts, left - 1)

    async def _wait(self, failure: HttpFailed, request: JsonRequest) -> None:
        """Wait until the server answers any request. Raises `HttpFailed`."""
        failed = time.monotonic()
        async with self._asking:
            while self._answered < failed:
                if self._began is not None and time.monotonic() - self._began >= self._outages.seconds:
                    detail = f"no answer for {self._outages.seconds / 60:g} minutes; {failure.kind}: {failure.detail}"
                    raise HttpFailed(failure.where, "outage", detail)
                try:
                    await self._ask(self._known or request)
                    self._note_answer()
                except HttpFailed as again:
                    if again.kind in RETRIED:
                        self._note_outage(again)
                        await asyncio.sleep(min(self._pause_seconds, self._outages.seconds))
                    else:
                        self._note_answer()

    def _note_outage(self, failure: HttpFailed) -> None:
        if self._began is None:
            self._began = time.monotonic()
            self._outages.out.add(self._server)
            why = escape_to_line(f"{failure.kind}: {failure.detail}")
            self._outages.tell(
                f"{self._server} does not answer ({why}); replies wait for their scores at most "
                f"{self._outages.seconds / 60:g} minutes (reward.patience_minutes)"
            )

    def _note_answer(self) -> None:
        self._answered = time.monotonic()
        if self._began is not None:
            seconds, self._began, self._ended = self._answered - self._began, None, self._answered
            self._outages.out.discard(self._server)
            self._outages.tell(
                f"{self._server} answers again after {seconds:.0f} s; the waiting replies are scored now"
            )
