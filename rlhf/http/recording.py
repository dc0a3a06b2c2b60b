"""Records servers' answers to a file, and replays them without the servers."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import httpx

from rlhf.errors import RecordingError
from rlhf.http.config import RecordingConfig, check_recording
from rlhf.http.exchange import received
from rlhf.http.untrusted_text import InvalidJson
from rlhf.runs.durable import private

KEPT_HEADERS = ("content-type", "retry-after")
"""Headers of an answer that are recorded. Request headers hold tokens, so none is recorded."""
TIMEOUT = "ReadTimeout"
ANY_BYTES = "surrogateescape"
"""The error handler that keeps bytes that are not text."""
UNLIMITED = httpx.Limits(max_connections=None)
"""No limit here, because the client has its own."""
Line = dict[str, Any]


def transport_for(recording: RecordingConfig | None) -> httpx.AsyncBaseTransport | None:
    """The transport of an HTTP client; None means the network. Raises `RecordingError`."""
    if recording is None:
        return None
    check_recording(recording)
    if recording.mode == "replay":
        return Replay(recording.file)
    return Recorder(recording.file, httpx.AsyncHTTPTransport(limits=UNLIMITED))


class Recorder(httpx.AsyncBaseTransport):
    """Forwards requests, and writes every answer or failure when it arrives. An answer is read completely first."""

    def __init__(self, path: Path, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        try:
            self._file = open(path, "x", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror}; name another recording.path") from None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = await _asked(request)
        try:
            response = await self._inner.handle_async_request(request)
            content = await received(response)
        except (httpx.TransportError, InvalidJson) as error:
            self._write({**asked, "failure": type(error).__name__, "detail": str(error)})
            raise
        except asyncio.CancelledError:  # the client's timeout for this attempt
            self._write({**asked, "failure": TIMEOUT, "detail": "cancelled"})
            raise
        headers = {name: response.headers[name] for name in KEPT_HEADERS if name in response.headers}
        answer = {"status": response.status_code, "headers": headers, "content": content.decode(errors=ANY_BYTES)}
        self._write({**asked, **answer})
        return httpx.Response(response.status_code, headers=headers, content=content)

    async def aclose(self) -> None:
        self._file.close()
        await self._inner.aclose()

    def _write(self, line: Line) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


class Replay(httpx.AsyncBaseTransport):
    """Answers from a file; equal requests get their answers in the recorded order. Raises `RecordingError` for a
    request without a remaining answer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[str, deque[Line]] = defaultdict(deque)
        for line in _lines(path):
            self._answers[_key(line)].append(line)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = await _asked(request)
        waiting = self._answers[_key(asked)]
        if not waiting:
            raise RecordingError(
                f"{self._path} has no answer left to {asked['method']} {asked['url']} {asked['body']:.200}; "
                "the run asks something else than the recorded one did: record again"
            )
        line = waiting.popleft()
        if line.get("failure") == InvalidJson.__name__:
            raise InvalidJson(line["detail"])
        if "failure" in line:
            raise _failure(line["failure"])(line["detail"], request=request)
        return httpx.Response(line["status"], headers=line["headers"], content=line["content"].encode(errors=ANY_BYTES))


async def _asked(request: httpx.Request) -> Line:
    body = (await request.aread()).decode(errors=ANY_BYTES)
    return {"method": request.method, "url": str(request.url), "body": body}


def _key(line: Line) -> str:
    """The key by which two requests are the same: method, address and body, independent of the JSON's formatting."""
    try:
        body = json.dumps(json.loads(line["body"]), sort_keys=True)
    except ValueError:
        body = line["body"]
    return f"{line['method']} {line['url']} {body}"


def _lines(path: Path) -> list[Line]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except ValueError as error:
        raise RecordingError(f"{path} is not a recording: {error}; record it again") from None


def _failure(name: str) -> type[httpx.TransportError]:
    """The exception type of a recorded failure."""
    known = {kind.__name__: kind for kind in (httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadTimeout)}
    return known.get(name, httpx.RemoteProtocolError)
