"""Runs a server on the current event loop, beside the loop's other work; also its listening socket and URL."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from rlhf.errors import DeadlinePassed, UserError

BACKLOG = 4096
"""Connections that the kernel queues while a server is busy: a thousand clients may start at once."""
START_SECONDS = 20.0
END_SECONDS = 10.0
"""Time that a server has to stop, running requests included, before it is cancelled."""


def bound(host: str, port: int) -> contextlib.closing[socket.socket]:
    """A listening socket at the address; port 0 means any free port. Raises `UserError` if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return contextlib.closing(socket.create_server((host, port), family=family, backlog=BACKLOG))
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if listener.family == socket.AF_INET6 else host
    return f"{'https' if tls else 'http'}://{host}:{port}"


@contextlib.asynccontextmanager
async def listening(config: uvicorn.Config) -> AsyncIterator[str]:
    """The URL of a server while it runs. It is stopped at the end of the block, and cancelled if it does not stop in
    time.

    Raises `UserError` for an address that is not available, `DeadlinePassed` when the server does not start.
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
    """A uvicorn server that leaves signal handling to its program, and reports when it listens."""

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
        """Wait until the server listens. Raises what `serving` raised, and `DeadlinePassed`."""
        listens = asyncio.create_task(self._listens.wait())
        await asyncio.wait((listens, serving), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if serving.done():
            serving.result()
        if not self._listens.is_set():
            raise DeadlinePassed("the start of a server", START_SECONDS)
