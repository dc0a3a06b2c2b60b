"""An ASGI application served on the event loop that runs already, beside all else that it does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn

from rlhf.errors import DeadlinePassed, UserError
from rlhf.http.binding import LOOPBACK

START_SECONDS = 10.0
GOODBYE_SECONDS = 2
"""How long requests may take to end when the server does."""
BACKLOG = 2048


@contextlib.asynccontextmanager
async def listening(app: Any, *, host: str = LOOPBACK, port: int = 0) -> AsyncIterator[str]:
    """Its address while it is served; port 0 is any that is free. Raises `UserError` for an address it cannot have."""
    with bound(host, port) as listener:
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, lifespan="off", server_header=False,
            timeout_graceful_shutdown=GOODBYE_SECONDS, timeout_keep_alive=75, backlog=BACKLOG,
        )  # fmt: skip
        server = Beside(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.ready(serving)
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait((serving,), timeout=START_SECONDS)


def bound(host: str, port: int) -> contextlib.closing[socket.socket]:
    """A socket at the address. Raises `UserError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return contextlib.closing(socket.create_server((host, port), family=family, backlog=BACKLOG))
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from None


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
            raise DeadlinePassed("the policy endpoint", START_SECONDS)
