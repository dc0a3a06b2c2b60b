"""WebSocket route of the wire format: `/ws`, one connection, one session, one frame at a time."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.websockets import WebSocket, WebSocketDisconnect

from rlhf.env.encoding import answer_data, dumps
from rlhf.env.server.acting import act, answer_text
from rlhf.env.server.sessions import EnvironmentSession, EnvironmentSessions
from rlhf.env.wire import Code, EnvironmentRefused, Json, ResetData, parse_frame, validated
from rlhf.tracing import span

NORMAL, BROKEN, TRY_AGAIN = 1000, 1011, 1013


async def serve_socket(socket: WebSocket, sessions: EnvironmentSessions, max_message_bytes: int) -> None:
    """Serve one connection, from accept to close. Its URL selects the session:

    `/ws`                 the session ends with the connection.
    `/ws?session_id=ID`   attaches to the session ID. A close frame ends it, a drop does not.
    `/ws?open=ID`         does the same, and opens the session if it does not exist.
    """
    await socket.accept()
    frames: asyncio.Queue[str | bytes] = asyncio.Queue(maxsize=1)
    reading = asyncio.create_task(read_frames(socket, frames))
    conversation = asyncio.create_task(converse(socket, frames, sessions, max_message_bytes))
    try:
        # The conversation ends first, or another socket cancels it, or the client disconnects, maybe during a step.
        await asyncio.wait((conversation, reading), return_when=asyncio.FIRST_COMPLETED)
    finally:
        conversation.cancel()
        reading.cancel()
        await asyncio.wait((conversation, reading))
    code = BROKEN if conversation.cancelled() else conversation.result()
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await socket.close(code)


async def read_frames(socket: WebSocket, frames: asyncio.Queue[str | bytes]) -> None:
    """Queue the client's frames. Returns once it has disconnected and the queue is empty."""
    while (message := await socket.receive())["type"] == "websocket.receive":
        text: str | None = message.get("text")
        await frames.put(bytes(message["bytes"]) if text is None else text)
    await frames.put("")  # waits until the last frame, which may be a close, is taken


async def converse(
    socket: WebSocket, frames: asyncio.Queue[str | bytes], sessions: EnvironmentSessions, max_message_bytes: int
) -> int:
    """Answer frames of the session until a close frame or until it is lost, and return the close code."""
    try:
        session = await session_for(socket, sessions)
        async with sessions.attached(session):
            try:
                code = BROKEN
                while not session.closed:
                    answer = await respond(await frames.get(), sessions, session, max_message_bytes)
                    if answer is None:
                        code = NORMAL
                        break
                    await send_frame(socket, *answer)
                sessions.end(session.id)
                return code
            finally:
                if not socket.query_params:
                    sessions.end(session.id)
    except EnvironmentRefused as refused:
        await send_frame(socket, "error", refused.data)
        return TRY_AGAIN if refused.code is Code.CAPACITY_REACHED else BROKEN


async def session_for(socket: WebSocket, sessions: EnvironmentSessions) -> EnvironmentSession:
    """Return the session that the connection asks for. Raises `EnvironmentRefused`."""
    if attach := socket.query_params.get("session_id"):
        return sessions.find(attach)
    if chosen := socket.query_params.get("open"):
        return await sessions.find_or_open(chosen)
    return await sessions.open()


async def respond(
    text: str | bytes, sessions: EnvironmentSessions, session: EnvironmentSession, max_message_bytes: int
) -> tuple[str, Json] | None:
    """Return the type and the data of the answer to a frame; None for a close frame."""
    spec = sessions.isolation.spec
    try:
        if len(text) > max_message_bytes:
            message = f"The message has {len(text):,} bytes; this server takes {max_message_bytes:,}"
            raise EnvironmentRefused(Code.VALIDATION_ERROR, message, 413, errors=[])
        frame = parse_frame(text)
        if frame.type == "close":
            return None
        with span(frame.type, detail=True):
            if frame.type == "reset":
                return "observation", answer_data(await session.reset(validated(ResetData, frame.data)), spec.tools)
            if frame.type == "state":
                return "state", session.state
            return "observation", await act(session, spec, frame.data)
    except EnvironmentRefused as refused:
        return "error", refused.data


async def send_frame(socket: WebSocket, kind: str, data: Json) -> None:
    try:
        text = answer_text({"type": kind, "data": data})
    except EnvironmentRefused as refused:
        text = dumps({"type": "error", "data": refused.data})
    with contextlib.suppress(WebSocketDisconnect):  # `read_frames` sees this, too, and ends the conversation
        await socket.send_text(text)
