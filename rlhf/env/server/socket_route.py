"""WebSocket route of the wire format: `/ws`, one connection, one session, one frame at a time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from rlhf.env.encoding import answer_data, dumps
from rlhf.env.server.acting import act
from rlhf.env.server.sessions import EnvironmentSession, EnvironmentSessions
from rlhf.env.wire import Code, EnvironmentRefused, Frame, Json, ResetData, parse_frame, validated

WATCH_AFTER_SECONDS = 0.05
"""For longer steps the connection is watched: when the client disconnects, the step is cancelled."""
NORMAL, BROKEN, TRY_AGAIN = 1000, 1011, 1013


async def serve_socket(socket: WebSocket, sessions: EnvironmentSessions, max_message_bytes: int) -> None:
    """Serve one connection, from accept to close. Its URL decides about its session:

    `/ws`                 the session ends with the connection.
    `/ws?session_id=ID`   attaches to an existing session, which outlives the connection.
    `/ws?open=ID`         attaches to the session ID, or opens it. A close frame ends it, a drop does not.
    """
    await socket.accept()
    conversation = asyncio.create_task(converse(socket, sessions, max_message_bytes))  # another socket may cancel it
    try:
        await asyncio.wait((conversation,))
    finally:
        conversation.cancel()
        (outcome,) = await asyncio.gather(conversation, return_exceptions=True)
    if isinstance(outcome, Exception) and not isinstance(outcome, WebSocketDisconnect):
        raise outcome
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await socket.close(outcome if isinstance(outcome, int) else BROKEN)


class Inbox:
    """Frames of a client. Between `watch` and the next frame, a disconnect of the client cancels the watching task."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._ahead: asyncio.Task[Message] | None = None

    async def frame(self) -> str | bytes:
        """Return the next frame. Raises `WebSocketDisconnect`."""
        ahead, self._ahead = self._ahead, None
        message = await (ahead or self._socket.receive())
        if message["type"] != "websocket.receive":
            raise WebSocketDisconnect(message.get("code", BROKEN))
        text: str | None = message.get("text")
        return text if text is not None else bytes(message["bytes"])

    def watch(self) -> asyncio.TimerHandle:
        """Start reading ahead after a delay, unless the handle is cancelled before."""
        watching = asyncio.current_task()
        assert watching is not None
        return asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._read_ahead, watching)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()

    def _read_ahead(self, watching: asyncio.Task[Any]) -> None:
        def received(ahead: asyncio.Task[Message]) -> None:
            if not ahead.cancelled() and ahead.result()["type"] != "websocket.receive" and self._ahead is ahead:
                watching.cancel()

        self._ahead = asyncio.create_task(self._socket.receive())
        self._ahead.add_done_callback(received)


async def converse(socket: WebSocket, sessions: EnvironmentSessions, max_message_bytes: int) -> int:
    """Find the session, answer frames, and end or keep the session as its URL specifies. Returns the close code."""
    inbox = Inbox(socket)
    try:
        session = await session_for(socket, sessions)
        async with sessions.attached(session):
            try:
                code = await answer_frames(socket, inbox, sessions, session, max_message_bytes)
                if session.ends_with_close:
                    sessions.end(session.id)
                return code
            finally:
                if not socket.query_params:
                    sessions.end(session.id)
    except EnvironmentRefused as refused:
        await send_frame(socket, "error", refused.data)
        return TRY_AGAIN if refused.code is Code.CAPACITY_REACHED else BROKEN
    finally:
        inbox.close()


async def session_for(socket: WebSocket, sessions: EnvironmentSessions) -> EnvironmentSession:
    """Return the session that the connection asks for. Raises `EnvironmentRefused`."""
    if attach := socket.query_params.get("session_id"):
        return sessions.find(attach)
    if chosen := socket.query_params.get("open"):
        return await sessions.find_or_open(chosen)
    return await sessions.open()


async def answer_frames(
    socket: WebSocket, inbox: Inbox, sessions: EnvironmentSessions, session: EnvironmentSession, max_message_bytes: int
) -> int:
    """Answer frames until a close frame, or until the session is lost. Returns the close code."""
    while not session.closed:
        text = await inbox.frame()
        watch = inbox.watch()
        try:
            if len(text) > max_message_bytes:
                message = f"The message has {len(text):,} bytes; this server takes {max_message_bytes:,}"
                raise EnvironmentRefused(Code.VALIDATION_ERROR, message, 413, errors=[])
            frame = parse_frame(text)
            if frame.type == "close":
                return NORMAL
            kind, data = await respond(frame, sessions, session)
        except EnvironmentRefused as refused:
            kind, data = "error", refused.data
        finally:
            watch.cancel()
        await send_frame(socket, kind, data)
    return BROKEN


async def respond(frame: Frame, sessions: EnvironmentSessions, session: EnvironmentSession) -> tuple[str, Json]:
    """Return the answer's type and data. Raises `EnvironmentRefused`."""
    spec = sessions.isolation.spec
    if frame.type == "reset":
        return "observation", answer_data(await session.reset(validated(ResetData, frame.data)), spec.tools)
    if frame.type == "state":
        return "state", session.state
    return "observation", await act(session, spec, frame.data)


async def send_frame(socket: WebSocket, kind: str, data: Json) -> None:
    await socket.send_text(dumps({"type": kind, "data": data}))
