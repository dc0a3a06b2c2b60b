"""uvicorn's HTTP and WebSocket protocols with limits on headers, time and connections, before any authentication."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from rlhf.http.crowd import Crowd

PIPELINED = 8
"""Requests that a client may send before the answer to its first one (pipelining)."""
LINGER_SECONDS = 2.0
"""How long the rest of a body is read and discarded after its request was refused: a client that is disconnected while
it sends would not see the reason."""
LINGER_PAUSE_SECONDS = 0.05
"""Pause between two reads of a discarded body, so that a flood of such bodies is not read at full speed."""
REFUSED_SECONDS = 0.5
"""How long a refused connection is kept open, unread: its client sees the reason, and does not reconnect at once."""
FRAMES = 64
"""WebSocket messages that may wait for their answers: this project's clients send one at a time."""
FRAGMENTS = 1024
"""Fragments of one WebSocket message."""
HEAD, BODY, LINGER = "its headers", "its body", "the rest of its body"


class Stopped(Exception):
    """Raised in a parser callback to stop the parser."""


class Placed(asyncio.Protocol):
    """Base of both connection types: it is counted in the crowd, and a client that does not read is disconnected."""

    crowd: Crowd
    transport: Any
    loop: asyncio.AbstractEventLoop
    _unread: asyncio.TimerHandle | None = None

    @property
    def peer(self) -> str:
        """The client's address."""
        return str((self.transport.get_extra_info("peername") or ("?",))[0])

    def leave(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.crowd.limits.send_seconds, self.leave)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)


class HttpConnection(Placed, HttpToolsProtocol):
    """One HTTP connection. `_unknown` counts the bytes since the parser last produced something: headers without end,
    trailers, chunk extensions."""

    def __init__(self, *args: Any, crowd: Crowd, **others: Any) -> None:
        super().__init__(*args, **others)
        self.crowd = crowd
        self._fields = self._field_bytes = self._unknown = 0
        self._in_body = False
        self._watched: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._why = (400, "no HTTP request")
        self._refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.crowd.enter(self, self.peer):
            transport.abort()
            return
        self.crowd.rests(self)
        self._watch(HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._unknown += len(data)
        super().data_received(data)
        if self._refused or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._watch(None)
        elif self._unknown > self.crowd.limits.header_bytes:
            self._refuse(431, f"more than {self.crowd.limits.header_bytes} bytes of headers")
        else:
            self._watch_for_what_is_missing()
            if self._watched is LINGER:
                self.flow.pause_reading()
                self.loop.call_later(LINGER_PAUSE_SECONDS, self._read_on)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINED:
            self._stop(429, f"more than {PIPELINED} requests ahead of their answers")
        self._fields = self._field_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._field_bytes += len(url)
        self._stop_beyond_limits()
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        self._field_bytes += len(name) + len(value)
        self._stop_beyond_limits()
        if not self._in_body:  # a trailer is not a header of the running request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body, self._unknown = True, 0
        self.crowd.works(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unknown = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._unknown = False, 0
        super().on_message_complete()
        self._rest_if_done()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._rest_if_done()
        if not self.transport.is_closing():
            self._watch_for_what_is_missing()

    def handle_websocket_upgrade(self) -> None:
        self.crowd.leave(self)
        super().handle_websocket_upgrade()
        socket = self.transport.get_protocol()
        if not socket.handshake_initiated:  # the WebSocket protocol rejected it without an answer
            self._refuse(400, "no WebSocket handshake")

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when its parser stopped."""
        self._refuse(*self._why)

    def _stop_beyond_limits(self) -> None:
        limits = self.crowd.limits
        if self._fields > limits.header_count:
            self._stop(431, f"more than {limits.header_count} headers")
        if self._field_bytes > limits.header_bytes:
            self._stop(431, f"more than {limits.header_bytes} bytes of headers")

    def _stop(self, status: int, why: str) -> None:
        """Stop the parser, which reports any exception of its callbacks as one error of its own."""
        self._why = (status, why)
        raise Stopped

    def _refuse(self, status: int, why: str) -> None:
        """Send an error, unless an answer has begun, and close the connection after a while."""
        self._refused = True
        self._watch(None)
        self.crowd.told.refused(self.peer, f"{status}: {why}")
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            said = f"{why}\n".encode()
            head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(said)
            self.transport.write(STATUS_LINE[status] + head + said)
        if self.cycle is not None:  # the application's further output is discarded
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.pipeline.clear()
        self.flow.pause_reading()
        self.crowd.rests(self)
        self.loop.call_later(REFUSED_SECONDS, self.transport.close)

    def _rest_if_done(self) -> None:
        if not self._in_body and not self.pipeline and (self.cycle is None or self.cycle.response_complete):
            self.crowd.rests(self)

    def _watch_for_what_is_missing(self) -> None:
        if self._in_body:
            answered = self.cycle is not None and self.cycle.response_complete
            self._watch(LINGER if answered else BODY)
        else:
            self._watch(HEAD if self._unknown else None)

    def _watch(self, missing: str | None) -> None:
        """Set a timer for the missing part of a request; a timer that already runs for it continues."""
        if missing is self._watched:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watched = missing
        if missing is not None:
            limits = self.crowd.limits
            seconds = {HEAD: limits.head_seconds, BODY: limits.body_seconds, LINGER: LINGER_SECONDS}[missing]
            self._timer = self.loop.call_later(seconds, self._late, missing, seconds)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _late(self, missing: str, seconds: float) -> None:
        if missing is LINGER or (missing is HEAD and not self._unknown):
            self.transport.close()  # no answer: the client already has one, or sent nothing
        else:
            self._refuse(408, f"a request had not sent {missing} within {seconds:g} s")


class SocketConnection(Placed, WebSocketsSansIOProtocol):
    """One WebSocket connection. Text messages are passed on as bytes: the reader of a message reports what is wrong
    with it."""

    def __init__(self, *args: Any, crowd: Crowd, **others: Any) -> None:
        super().__init__(*args, **others)
        self.crowd = crowd
        self._holds = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.crowd.enter(self, self.peer):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(0)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.transport.pause_reading()  # pings are answered, so a flood of them would fill memory with pongs

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_text(self, event: Any) -> None:
        self.handle_bytes(event)

    async def send(self, message: Any) -> None:
        if self.close_sent:  # closed by this side while the application was working
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.http.response.body":
            self.handshake_complete = True  # refused by an answer; else uvicorn logs an error

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        partial = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        if not self._hold(partial):
            self._fail(1013, "the server holds all that it can")
        elif self.queue.qsize() > FRAMES or len(self.frames) > FRAGMENTS:
            self._fail(1008, "too many messages at once")

    def _hold(self, partial: int) -> bool:
        """Whether there is room for `partial` bytes of an incomplete message."""
        if partial == self._holds:
            return True
        if not self.crowd.held.take(partial - self._holds):
            return False
        self._holds = partial
        if not partial and self._late is not None:
            self._late.cancel()
            self._late = None
        if partial and self._late is None:
            seconds = self.crowd.limits.body_seconds
            self._late = self.loop.call_later(
                seconds, self._fail, 1008, f"a message was not whole within {seconds:g} s"
            )
        return True

    def _fail(self, code: int, why: str) -> None:
        """Close with a reason, and notify the application."""
        if self.transport.is_closing():
            return
        self.crowd.told.refused(self.peer, f"WebSocket {code}: {why}")
        self.conn.fail(code, why)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": why})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
