"""A socket at an address, its URL, and a server on the event loop that runs already, beside all else that it does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from rlhf.errors import DeadlinePassed, UserError

BACKLOG = 4096
"""Connections that the kernel holds while a server is busy: a thousand clients start at once."""
START_SECONDS = 20.0
END_SECONDS = 10.0
"""How long a server may take to end, requests that run included, before it is cancelled."""


def bound(host: str, port: int) -> contextlib.closing[socket.socket]:
    """A socket at the address; port 0 is any that is free. Raises `UserError` when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return contextlib.closing(socket.create_server((host, port), family=family, backlog=BACKLOG))
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Where clients find what listens."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"{'https' if tls else 'http'}://{host}:{port}"


@contextlib.asynccontextmanager
async def listening(config: uvicorn.Config) -> AsyncIterator[str]:
    """The URL of a server while it runs. It ends with the block, and is cancelled when it does not.

    Raises `UserError` for an address that it cannot have, `DeadlinePassed` when it does not start.
    """
    with bound(config.host, config.port) as listener:
        server = Beside(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.ready(serving)
            yield url_of(listener, tls=config.is_ssl)
        finally:
            server.should_exit = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(serving, END_SECONDS)


class Beside(uvicorn.Server):
    """One that leaves signals to the program it is a part of, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._listens.set()

    async def ready(self, serving: asyncio.Task[None]) -> None:
        """Raises what `serving` raised, and `DeadlinePassed`."""
        listens = asyncio.create_task(self._listens.wait())
        await asyncio.wait((listens, serving), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if serving.done():
            serving.result()
        if not self._listens.is_set():
            raise DeadlinePassed("the start of a server", START_SECONDS)
