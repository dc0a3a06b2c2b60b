"""The HTTP client of this project: deadlines, retries of safe requests, a concurrency limit and a circuit breaker."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import httpx

from rlhf.errors import HttpFailed
from rlhf.http.adaptive_limiter import AdaptiveLimiter
from rlhf.http.binding import is_loopback
from rlhf.http.circuit import Circuit
from rlhf.http.config import HttpConfig, RecordingConfig
from rlhf.http.exchange import client, json_body, send_request
from rlhf.http.failures import may_repeat, of_status, of_transport
from rlhf.http.recording import transport_for
from rlhf.http.untrusted_text import InvalidJson, read_json

IDEMPOTENCY_HEADER = "Idempotency-Key"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request. `repeatable` says that a retry is safe: the request changes nothing at the server, or the server
    knows `key` and answers a repeated request with the first result."""

    method: str
    path: str
    body: Any = None
    repeatable: bool = False
    key: str | None = None


class HttpClient:
    """Calls one server. `timeout_seconds` covers one attempt, from connecting to the last byte; waiting for admission
    (see `AdaptiveLimiter`) does not count. A call ends within `attempts` timeouts and backoffs. For one event loop.
    Call `close` at the end."""

    def __init__(
        self,
        url: str,
        config: HttpConfig,
        *,
        timeout_seconds: float,
        token: str | None = None,
        recording: RecordingConfig | None = None,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url, self._config, self._timeout_seconds = url.rstrip("/"), config, timeout_seconds
        self._recording = recording
        self._headers = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        self._limiter = AdaptiveLimiter(config.concurrency)
        self._circuit = Circuit(
            self.url, failure_threshold=config.failure_threshold, reset_seconds=config.reset_seconds, clock=clock
        )

    async def post(self, path: str, body: Any, *, repeatable: bool = False, key: str | None = None) -> Any:
        """The JSON of the server's answer. Raises `HttpFailed`, and `RecordingError` from a replay."""
        return await self.call(
            HttpRequest(method="POST", path=path, body=body, repeatable=repeatable or key is not None, key=key)
        )

    async def get(self, path: str) -> Any:
        """See `post`."""
        return await self.call(HttpRequest(method="GET", path=path, repeatable=True))

    async def call(self, request: HttpRequest) -> Any:
        """Send a request, with retries, and return the JSON of the answer."""
        async with self._limiter:
            with self._circuit.guard():
                return await self._attempts(request)

    async def meet(self) -> None:
        """Check that the server is reachable, and take its `capacity` from `/health` if it states one. Raises
        `HttpFailed` when it cannot be reached or refuses the token; any other answer is ignored."""
        try:
            async with self._limiter:  # without the circuit breaker: not every healthy server answers in JSON
                health = await self._attempts(HttpRequest(method="GET", path="/health", repeatable=True))
        except HttpFailed as failure:
            if failure.kind in ("refused", "denied"):
                raise
            return
        capacity = health.get("capacity") if isinstance(health, dict) else None
        if type(capacity) is int and capacity > 0:
            self._limiter.narrow(capacity)

    async def close(self) -> None:
        """Close the connections, and the recording."""
        if "_http" in self.__dict__:
            await self._http.aclose()

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        """Made at first use, so that an unusable recording is an error at the start."""
        return client(
            timeout=self._timeout_seconds,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._config.concurrency),
            headers=self._headers,
            transport=transport_for(self._recording),
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),  # no proxy for this machine
        )

    async def _attempts(self, request: HttpRequest) -> Any:
        for attempt in range(1, self._config.attempts + 1):
            halvings = self._limiter.halvings
            try:
                answer = await self._attempt(request)
            except HttpFailed as failure:
                if failure.kind == "busy":
                    self._limiter.busy(halvings)
                if attempt == self._config.attempts or not may_repeat(failure, request.repeatable):
                    raise
                await asyncio.sleep(self._pause(attempt, failure.retry_after_seconds))
            else:
                self._limiter.answered()
                return answer
        raise AssertionError("a call has at least one attempt")

    def _pause(self, attempt: int, asked_for: float) -> float:
        """Backoff in seconds. It is random, so that calls that failed together do not retry together."""
        longest = self._config.max_backoff_seconds
        whole: float = min(longest, self._config.initial_backoff_seconds * 2 ** (attempt - 1))
        drawn = whole * random.uniform(0.5, 1.0)
        return max(drawn, min(asked_for, longest))

    async def _attempt(self, request: HttpRequest) -> Any:
        where = f"{request.method} {self.url}{request.path}"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._exchange(where, request)
        except TimeoutError:
            raise HttpFailed(where, "timeout", f"no answer within {self._timeout_seconds:g} s") from None
        except httpx.HTTPError as error:
            raise of_transport(where, error) from None

    async def _exchange(self, where: str, request: HttpRequest) -> Any:
        content = None if request.body is None else json_body(request.body)
        headers = _headers(request)
        asked = self._http.build_request(request.method, self.url + request.path, content=content, headers=headers)
        try:
            answer = await send_request(self._http, asked)
            if failure := of_status(where, answer.status, answer.content, answer.retry_after):
                raise failure
            return read_json(answer.content)
        except InvalidJson as error:
            raise HttpFailed(where, "protocol", str(error)) from None


def _headers(request: HttpRequest) -> dict[str, str]:
    kind = {} if request.body is None else {"Content-Type": "application/json"}
    return kind | ({IDEMPOTENCY_HEADER: request.key} if request.key else {})
