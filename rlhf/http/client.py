"""The HTTP client of this project: deadlines, retries of safe requests, and a limit on concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from rlhf.errors import HttpFailed
from rlhf.http.binding import is_loopback
from rlhf.http.config import HttpConfig, RecordingConfig
from rlhf.http.exchange import client, json_body, send_request
from rlhf.http.recording import RecordedFailure, Recorder, Replay, open_recording
from rlhf.http.untrusted_text import InvalidJson, read_json

IDEMPOTENCY_HEADER = "Idempotency-Key"
NO_WORK_DONE = frozenset({"refused", "busy"})
"""Failures before the server did any work: a retry is always safe."""
UNCERTAIN = frozenset({"timeout", "lost", "server"})
"""Failures where the server may have done the work: only a request that may be repeated is retried."""


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
    """Calls one server. `timeout_seconds` covers one attempt, from connecting to the last byte; waiting for one of the
    `concurrency` places does not count. A call ends within `attempts` timeouts and backoffs. For one event loop. Call
    `close` at the end."""

    def __init__(
        self,
        url: str,
        config: HttpConfig,
        *,
        timeout_seconds: float,
        token: str | None = None,
        recording: RecordingConfig | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.url, self._config, self._timeout_seconds = url.rstrip("/"), config, timeout_seconds
        self._recording_config = recording
        self._headers = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        self._places = asyncio.Semaphore(config.concurrency)
        self._backoff = wait_random_exponential(
            multiplier=config.initial_backoff_seconds, max=config.max_backoff_seconds
        )

    async def post(self, path: str, body: Any, *, repeatable: bool = False, key: str | None = None) -> Any:
        """Return the JSON of the server's answer. Raises `HttpFailed`, and `RecordingError` from a replay."""
        return await self.call(
            HttpRequest(method="POST", path=path, body=body, repeatable=repeatable or key is not None, key=key)
        )

    async def get(self, path: str) -> Any:
        """See `post`."""
        return await self.call(HttpRequest(method="GET", path=path, repeatable=True))

    async def call(self, request: HttpRequest) -> Any:
        """Send a request, with retries, and return the JSON of the answer; with a recording, record or replay it."""
        recording = self._recording
        if recording is None:
            return await self._attempts(request)
        line = {"method": request.method, "url": self.url + request.path, "body": request.body}
        if isinstance(recording, Replay):
            try:
                return recording.answer(line)
            except RecordedFailure as failure:
                raise HttpFailed(self._name(request), failure.kind, failure.detail) from None
        try:
            answer = await self._attempts(request)
        except HttpFailed as failure:
            recording.failed(line, failure.kind, failure.detail)
            raise
        except asyncio.CancelledError:
            recording.failed(line, "timeout", "the caller stopped waiting")
            raise
        recording.answered(line, answer)
        return answer

    async def meet(self) -> None:
        """Check that the server is reachable, and take its `capacity` from `/health` if it states a lower one than
        `concurrency`. Raises `HttpFailed` when it cannot be reached or refuses the token; any other answer is
        ignored."""
        try:
            health = await self.get("/health")
        except HttpFailed as failure:
            if failure.kind in ("refused", "denied"):
                raise
            return
        capacity = health.get("capacity") if isinstance(health, dict) else None
        if type(capacity) is int and 0 < capacity < self._config.concurrency:
            self._places = asyncio.Semaphore(capacity)

    async def close(self) -> None:
        """Close the connections and the recording."""
        if "_http" in self.__dict__:
            await self._http.aclose()
        if self.__dict__.get("_recording") is not None:
            self.__dict__["_recording"].close()

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        return client(
            timeout=self._timeout_seconds,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._config.concurrency),
            headers=self._headers,
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),  # no proxy for this machine
        )

    @cached_property
    def _recording(self) -> Recorder | Replay | None:
        """Opened at first use, so that an unusable recording is an error at the start of a run."""
        return None if self._recording_config is None else open_recording(self._recording_config)

    async def _attempts(self, request: HttpRequest) -> Any:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._config.attempts),
            wait=self._pause,
            retry=retry_if_exception(partial(may_repeat, repeatable=request.repeatable)),
            reraise=True,
        )
        async with self._places:
            return await retrying(self._attempt, request)

    def _pause(self, state: RetryCallState) -> float:
        """Seconds before the next attempt: random, so that calls that failed together do not retry together, and at
        least what the server asked for."""
        failure = state.outcome.exception() if state.outcome else None
        wished = failure.retry_after_seconds if isinstance(failure, HttpFailed) else 0.0
        return max(self._backoff(state), min(wished, self._config.max_backoff_seconds))

    async def _attempt(self, request: HttpRequest) -> Any:
        where = self._name(request)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._exchange(where, request)
        except TimeoutError:
            raise HttpFailed(where, "timeout", f"no answer within {self._timeout_seconds:g} s") from None
        except httpx.HTTPError as error:
            raise transport_failure(where, error) from None

    async def _exchange(self, where: str, request: HttpRequest) -> Any:
        content = None if request.body is None else json_body(request.body)
        headers = {} if request.body is None else {"Content-Type": "application/json"}
        headers |= {IDEMPOTENCY_HEADER: request.key} if request.key else {}
        sent = self._http.build_request(request.method, self.url + request.path, content=content, headers=headers)
        try:
            answer = await send_request(self._http, sent)
            if not 200 <= answer.status < 300:
                raise status_failure(where, answer.status, answer.content, answer.retry_after)
            return read_json(answer.content)
        except InvalidJson as error:
            raise HttpFailed(where, "protocol", str(error)) from None

    def _name(self, request: HttpRequest) -> str:
        return f"{request.method} {self.url}{request.path}"


def may_repeat(failure: BaseException, repeatable: bool) -> bool:
    """Whether another attempt is safe."""
    if not isinstance(failure, HttpFailed):
        return False
    return failure.kind in NO_WORK_DONE or (repeatable and failure.kind in UNCERTAIN)


def transport_failure(where: str, error: httpx.HTTPError) -> HttpFailed:
    """Classify a failure below HTTP, such as a connection error."""
    detail = f"{type(error).__name__}: {error}".rstrip(": ")
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)):
        return HttpFailed(where, "refused", detail)
    if isinstance(error, httpx.TimeoutException):
        return HttpFailed(where, "timeout", detail)
    return HttpFailed(where, "lost" if isinstance(error, httpx.TransportError) else "protocol", detail)


def status_failure(where: str, status: int, body: bytes, retry_after: str | None) -> HttpFailed:
    """Classify an answer that is not a success. `Retry-After` counts in seconds; its other form, a date, is ignored."""
    detail = f"status {status}: {' '.join(body[:300].decode(errors='replace').split())}".rstrip(": ")
    kind = {429: "busy", 503: "busy", 401: "denied", 403: "denied", 408: "server"}.get(
        status, "server" if status >= 500 else "rejected"
    )
    seconds = float(retry_after) if retry_after and retry_after.isascii() and retry_after.isdigit() else 0.0
    return HttpFailed(where, kind, detail, retry_after_seconds=seconds)
