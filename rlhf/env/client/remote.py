"""One session on an environment server, over its WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from rlhf.env.client.dialect import Dialect, InvalidAction
from rlhf.env.encoding import MESSAGE_BYTES, dumps
from rlhf.env.hosting.isolation import Deadlines
from rlhf.env.wire import Code, ErrorAnswer, Json, Undecodable, validate_answer
from rlhf.errors import EnvironmentFailed
from rlhf.tracing import trace_headers
from rlhf.types import Message, Observation, Task
from rlhf.untrusted_text import InvalidJson, read_json

TOO_BIG = 1009
"""Code with which either side closes a connection that had a message beyond its limit."""
SHOWN = 1000
"""Maximum characters of a server's error message."""
LATER_ROLES = frozenset(("user", "tool"))
"""Roles of messages after the first observation: the policy would obey a later `system` message."""
FIRST_ROLES = LATER_ROLES | {"system", "assistant"}
KINDS: dict[str, str] = {Code.SESSION_ERROR: "lost", Code.EXECUTION_ERROR: "raised", Code.FACTORY_ERROR: "raised"}
"""Failure kinds for error codes of servers that send no kind."""
LATER_THAN_SERVERS = Deadlines(open_seconds=60.0, reset_seconds=110.0, step_seconds=60.0)
"""A server of this library reports its own timeouts, so the client waits longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Deadlines and retries of a client. Only safe requests are retried. `open_seconds` is for capacity on a server;
    the others are for an answer, all attempts together. An attempt without an answer within its share is abandoned."""

    deadlines: Deadlines = LATER_THAN_SERVERS
    tries: int = 3
    pause_seconds: float = 0.2


class Broken(Exception):
    """A failed connection; the caller knows whether a retry is safe."""


class AtCapacity(Exception):
    """The server has no capacity at the moment; `data` is its refusal."""

    def __init__(self, url: str, data: Json) -> None:
        super().__init__(f"{url}: {data.get('message')!s:.{SHOWN}}")
        self.data = data


class Direct(connect):
    """A connection without redirects: a redirect would also forward the client's token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a server: its HTTP URL, and its bearer token, required beyond loopback."""

    url: str
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def socket_url(self, query: str = "") -> str:
        return "ws" + self.url.removeprefix("http").rstrip("/") + "/ws" + query


class RemoteEnvironment:
    """An `Environment` on a server. With a server of this library, a dropped or silent connection is reopened and the
    request repeated under the same request id, so no step is executed twice; with any other server, the request is lost
    with the session."""

    def __init__(self, address: Address, dialect: Dialect, patience: Patience) -> None:
        self._address, self._dialect, self._patience = address, dialect, patience
        self._id, self._requests = secrets.token_hex(16), 0
        self._socket: ClientConnection | None = None
        self._opened = False
        self.cut_off: str | None = None
        """Why the server could not be reached, if that ended the session."""

    async def open(self) -> None:
        """Open the session. Raises `Broken`, `AtCapacity`, `EnvironmentFailed`."""
        answer = await self.exchange({"type": "state"})
        self._raise_if_error(answer, "state")
        self._opened = True

    async def reset(self, task: Task, *, seed: int) -> Observation:
        data = self._dialect.reset(task, seed, self._request_id())
        return await self._observed({"type": "reset", "data": data}, self._patience.deadlines.reset_seconds)

    async def step(self, action: Message) -> Observation:
        try:
            data = self._dialect.action(action, self._request_id())
            return await self._observed({"type": "step", "data": data}, self._patience.deadlines.step_seconds)
        except InvalidAction as invalid:
            return Observation(messages=(Message(role="user", content=str(invalid)),))

    async def close(self) -> None:
        """End the session and disconnect. Never raises; without the server's receipt, the session's lease expires."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionClosed, OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._socket.send('{"type":"close"}')
                    await self._socket.close()
        self.abort()

    async def _observed(self, frame: Json, seconds: float) -> Observation:
        """Return the observation that answers a frame. Raises `EnvironmentFailed`, `InvalidAction`."""
        try:
            async with asyncio.timeout(seconds):
                answer = await self._ask(frame, seconds)
        except TimeoutError:
            detail = f"no answer to {frame['type']} within {seconds:g} s"
            if self._socket is None:  # the server accepts no connection either: it hangs, not the environment
                raise self._cut_off(detail) from None
            self.abort()
            raise self._failed("timeout", detail) from None
        self._raise_if_error(answer, frame["type"])
        try:
            observation = self._dialect.observation(answer["data"])
        except Undecodable as error:
            raise self._failed("protocol", f"the answer to {frame['type']} is invalid: {error}") from None
        allowed = FIRST_ROLES if frame["type"] == "reset" else LATER_ROLES
        forbidden = [message.role for message in observation.messages if message.role not in allowed]
        if forbidden:
            raise self._failed("protocol", f"the answer to {frame['type']} has a message of role {forbidden[0]!r:.40}")
        return observation

    async def _ask(self, frame: Json, seconds: float) -> Json:
        """Return the answer to a frame; retried where a connection fails and the server supports request ids."""
        tries = self._patience.tries if self._dialect.resumes else 1
        for left in reversed(range(tries)):
            try:
                async with asyncio.timeout(seconds / tries if left else None):
                    return await self.exchange(frame)
            except (Broken, TimeoutError) as error:
                self.abort()
                why = f"{frame['type']}: {error}"
                if left:
                    await asyncio.sleep(self._patience.pause_seconds)
            except AtCapacity as error:
                raise self._failed("lost", str(error)) from None
        raise self._cut_off(why)

    async def exchange(self, frame: Json | str) -> Json:
        """Send one frame and receive one. Raises `Broken`, `AtCapacity`, `EnvironmentFailed`."""
        try:
            if self._socket is None:
                self._socket = await self._connect()
            with contextlib.suppress(ConnectionClosed):  # read the reason that a server sends before it closes
                await self._socket.send(frame if isinstance(frame, str) else dumps(frame))
            answer = read_json(await self._socket.recv())
        except InvalidStatus as refused:
            self._raise_for_status(refused.response.status_code)
        except (WebSocketException, OSError, EOFError) as error:
            if isinstance(error, ConnectionClosed) and (closed := error.rcvd or error.sent) and closed.code == TOO_BIG:
                raise self._failed("protocol", f"the message is too long: {closed.reason}") from None
            raise Broken(f"{type(error).__name__}: {error!s:.{SHOWN}}") from None
        except InvalidJson as error:
            raise self._failed("protocol", f"{error}") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
            raise self._failed("protocol", f"the answer is not a frame: {answer!r:.100}")
        if answer["data"].get("code") == Code.CAPACITY_REACHED:
            raise AtCapacity(self._address.url, answer["data"])
        return answer

    async def _connect(self) -> ClientConnection:
        """Open a WebSocket to the session. On a server of this library it can be opened again."""
        query = ""
        if self._dialect.resumes:
            query = f"?session_id={self._id}" if self._opened else f"?open={self._id}"
        return await Direct(
            self._address.socket_url(query),
            additional_headers=self._address.headers | trace_headers(),
            compression=None,
            max_size=MESSAGE_BYTES,
            open_timeout=None,
            close_timeout=1.0,
            proxy=None,
        )

    def _raise_for_status(self, status: int) -> None:
        if status >= 500:
            raise Broken(f"HTTP status {status}")
        if status in (401, 403):
            raise self._failed("refused", f"{self._address.url} refuses the token (HTTP status {status})")
        raise self._failed("protocol", f"{self._address.url} has no WebSocket at /ws (HTTP status {status})")

    def _raise_if_error(self, answer: Json, method: str) -> None:
        """Raise an error frame as a failure, of the kind that it names, or that its code means."""
        if answer.get("type") != "error":
            return
        try:
            error = validate_answer(ErrorAnswer, answer["data"], "error")
        except Undecodable as problem:
            raise self._failed("protocol", str(problem)) from None
        refused = method == "step" and error.code == Code.VALIDATION_ERROR
        if refused and (text := self._dialect.refused(error.message)) is not None:
            raise InvalidAction(text)
        kind = error.kind or KINDS.get(error.code, "protocol")
        kind = kind if kind in ("raised", "timeout", "lost", "refused") else "protocol"
        raise self._failed(kind, f"{error.code}: {error.message}")

    def _cut_off(self, why: str) -> EnvironmentFailed:
        self.cut_off = why[:SHOWN]
        return self._failed("lost", why)

    def _failed(self, kind: str, detail: str) -> EnvironmentFailed:
        return EnvironmentFailed(self._dialect.spec.name, kind, detail[:SHOWN])

    def _request_id(self) -> str:
        self._requests += 1
        return f"{self._id}-{self._requests}"

    def abort(self) -> None:
        """Drop the connection at once; a closing handshake would wait for a server that may not respond."""
        if self._socket is not None:
            self._socket.transport.abort()
            self._socket = None
