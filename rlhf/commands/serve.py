"""`rlhf serve env`: an environment as a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace

from rlhf.commands.env_check import json_object
from rlhf.env.hosting.isolation import Factory, Isolation
from rlhf.env.hosting.kinds import KINDS, isolation_of
from rlhf.env.server.app import BACKLOG, ServerSettings, serve
from rlhf.errors import UserError
from rlhf.http.binding import check_binding
from rlhf.pieces import is_piece


def serve_env(name: str, arguments: str, isolation: str, settings: ServerSettings) -> int:
    """Serve until SIGTERM or Ctrl-C. Raises `UserError`."""
    factory = Factory(name=checked_name(name), arguments=json_object(arguments, "--arguments"))
    kind = next((kind for kind in KINDS if kind == isolation), None)
    if kind is None:
        raise UserError(f"--isolation {isolation!r}: write one of {', '.join(KINDS)}")
    check_binding(settings.host, settings.token)
    with listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        chosen = replace(settings, host=host, port=port)
        with asyncio.Runner(loop_factory=event_loop()) as runner:
            runner.run(
                serve_and_say(isolation_of(kind, factory, settings.deadlines, settings.max_sessions), chosen, listener)
            )
    return 0


async def serve_and_say(isolation: Isolation, settings: ServerSettings, listener: socket.socket) -> None:
    await isolation.start()
    try:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"{isolation.spec.name} at http://{host}:{settings.port}, {settings.max_sessions:,} sessions", flush=True)
        await serve(isolation, settings, listener)
    finally:
        await isolation.stop()


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """That of uvloop, which halves the cost of a step, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def checked_name(name: str) -> str:
    if not is_piece(name):
        raise UserError(f"{name!r} is not of the form MODULE:CLASS, for instance my_environments:Guess")
    return name


def listening(settings: ServerSettings) -> contextlib.closing[socket.socket]:
    """A socket at the address; port 0 is any that is free. Raises `UserError` when it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        address = (settings.host, settings.port)
        return contextlib.closing(socket.create_server(address, family=family, backlog=BACKLOG))
    except OSError as error:
        raise UserError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from None
