"""The HTTP client of rewards, judges, opponents and sandboxes: deadlines, retries, concurrency, bounded answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cached_property
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from rlhf.errors import HttpFailed
from rlhf.http.binding import is_loopback
from rlhf.http.config import HttpConfig, RecordingConfig
from rlhf.http.outages import RETRIED, Availability, JsonRequest, Outages
from rlhf.http.recording import RecordedFailure, Recorder, Replay, open_recording
from rlhf.tracing import trace_headers
from rlhf.untrusted_text import InvalidJson, read_json, replace_surrogates

JSON = {"Content-Type": "application/json"}
CONNECT_SECONDS = 10.0
ANSWER_BYTES = 64 * 2**20
"""Longest accepted answer; longer ones are not kept in memory."""
REFUSAL_BYTES = 4096
"""Longest kept part of an answer that is not a success: error messages use less of it."""


class HttpClient:
    """Calls one server. `timeout_seconds` covers one attempt, from connecting to the last byte; waiting for one of the
    `concurrency` places does not count. A call ends within `attempts` timeouts and backoffs; with `outages`, `post`
    also waits for a server that answers nobody. For one event loop. Call `close` at the end."""

    def __init__(
        self,
        url: str,
        config: HttpConfig,
        *,
        timeout_seconds: float,
        token: str | None = None,
        recording: RecordingConfig | None = None,
        headers: Mapping[str, str] | None = None,
        outages: Outages | None = None,
    ) -> None:
        self.url, self._config, self._timeout_seconds = url.rstrip("/"), config, timeout_seconds
        self._recording_config = recording
        self._headers = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        self._places = asyncio.Semaphore(config.concurrency)
        self._backoff = wait_random_exponential(
            multiplier=config.initial_backoff_seconds, max=config.max_backoff_seconds
        )
        self._available = (
            Availability(self.url, self._attempt, outages, config.max_backoff_seconds) if outages else None
        )

    async def get(self, path: str) -> Any:
        return await self._call("GET", path)

    async def post(self, path: str, body: Any) -> Any:
        """Return the JSON of the answer to a repeatable request. Raises `HttpFailed`, and `RecordingError`."""
        return await self._call("POST", path, body)

    async def meet(self) -> None:
        """Check that the server is reachable, and take its `capacity` from `/health` if that is lower than
        `concurrency`. Raises `HttpFailed` when it cannot be reached or refuses the token."""
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
        if "_http" in self.__dict__:
            await self._http.aclose()
        if self.__dict__.get("_recording") is not None:
            self.__dict__["_recording"].close()

    @cached_property
    def _http(self) -> httpx.AsyncClient:
        return client(
            timeout=httpx.Timeout(self._timeout_seconds, connect=min(CONNECT_SECONDS, self._timeout_seconds)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=self._config.concurrency),
            headers=self._headers,
            trust_env=not is_loopback(urlsplit(self.url).hostname or ""),  # no proxy for this machine
        )

    @cached_property
    def _recording(self) -> Recorder | Replay | None:
        """Opened at first use, so that an unusable recording is an error at the start of a run."""
        return None if self._recording_config is None else open_recording(self._recording_config)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request, with retries; with a recording, record or replay the outcome."""
        recording, url = self._recording, self.url + path
        asked = JsonRequest(method, url, body)
        if recording is None:
            return await self._attempts(asked)
        request = asked._asdict()
        if isinstance(recording, Replay):
            try:
                return recording.answer(request)
            except RecordedFailure as failure:
                raise HttpFailed(f"{method} {url}", failure.kind, failure.detail) from None
        try:
            answer = await self._attempts(asked)
        except HttpFailed as failure:
            recording.failed(request, failure.kind, failure.detail)
            raise
        except asyncio.CancelledError:
            recording.failed(request, "timeout", "the caller stopped waiting")
            raise
        recording.answered(request, answer)
        return answer

    async def _attempts(self, request: JsonRequest) -> Any:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._config.attempts),
            wait=self._pause,
            retry=retry_if_exception(lambda error: isinstance(error, HttpFailed) and error.kind in RETRIED),
            reraise=True,
        )
        async with self._places:
            if self._available is None or request.method == "GET":  # at the start, where a wait would hide an error
                return await retrying(self._attempt, request)
            return await self._available.call(request, lambda: retrying(self._attempt, request))

    def _pause(self, state: RetryCallState) -> float:
        """Return the seconds before the next attempt: random, and at least the server's `Retry-After`."""
        failure = state.outcome.exception() if state.outcome else None
        wished = failure.retry_after_seconds if isinstance(failure, HttpFailed) else 0.0
        return max(self._backoff(state), min(wished, self._config.max_backoff_seconds))

    async def _attempt(self, asked: JsonRequest) -> Any:
        where = f"{asked.method} {asked.url}"
        content = None if asked.body is None else json_body(asked.body)
        headers = None if content is None else JSON
        request = self._http.build_request(asked.method, asked.url, content=content, headers=headers)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                answer = await send_request(self._http, request)
            if not answer.is_success:
                raise status_failure(where, answer)
            return read_json(answer.content)
        except TimeoutError:
            raise HttpFailed(where, "timeout", f"no answer within {self._timeout_seconds:g} s") from None
        except InvalidJson as error:
            raise HttpFailed(where, "protocol", str(error)) from None
        except httpx.HTTPError as error:
            kind = "lost" if isinstance(error, httpx.TransportError) else "protocol"
            if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)):
                kind = "refused"
            elif isinstance(error, httpx.TimeoutException):
                kind = "timeout"
            raise HttpFailed(where, kind, f"{type(error).__name__}: {error}".rstrip(": ")) from None


def status_failure(where: str, answer: httpx.Response) -> HttpFailed:
    """Classify an answer that is not a success. `Retry-After` counts in seconds; its other form, a date, is ignored."""
    status, retry_after = answer.status_code, answer.headers.get("retry-after", "")
    detail = f"status {status}: {' '.join(answer.content[:300].decode(errors='replace').split())}".rstrip(": ")
    kind = {429: "busy", 503: "busy", 401: "denied", 403: "denied", 408: "server"}.get(
        status, "server" if status >= 500 else "rejected"
    )
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
    return HttpFailed(where, kind, detail, retry_after_seconds=seconds)


def json_body(body: Any) -> bytes:
    """Return `body` as JSON, with lone surrogates replaced: a policy may write these, and most servers refuse them."""
    text = json.dumps(body, allow_nan=False)
    return (json.dumps(replace_surrogates(body), allow_nan=False) if "\\ud" in text else text).encode()


def client(**settings: Any) -> httpx.AsyncClient:
    """Return an HTTP client without compression, redirects (which would get the token) and cookies."""
    http = httpx.AsyncClient(**settings, follow_redirects=False)
    http.headers["Accept-Encoding"] = "identity"  # a compressed answer may expand a thousand times in memory
    http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    return http


async def send_request(http: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
    """Send a request and return the status, `Retry-After`, and the content (of a refusal only the beginning). Raises
    `InvalidJson` for a success that is compressed or too long, and httpx's errors. The caller sets the deadline:
    httpx's timeouts apply to each part of an answer separately."""
    request.headers.update(trace_headers())
    response = await http.send(request, stream=True)
    try:
        content = await _content(response)
    finally:
        await response.aclose()
    headers = [(name, value) for name, value in response.headers.raw if name.lower() == b"retry-after"]
    return httpx.Response(response.status_code, headers=headers, content=content)


async def _content(response: httpx.Response) -> bytes:
    """Read all of a success, the beginning of any other answer."""
    longest = ANSWER_BYTES if response.is_success else REFUSAL_BYTES
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if response.is_success and encoding not in ("identity", ""):
        raise InvalidJson(f"the answer is compressed ({encoding[:20]}), although the request did not allow it")
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) > longest:
            if response.is_success:
                raise InvalidJson(f"the answer is longer than {longest} bytes")
            break
    return bytes(content[:longest])
