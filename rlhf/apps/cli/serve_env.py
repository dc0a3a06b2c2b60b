"""`rlhf serve env` serves an environment over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import uvicorn

from rlhf.apps.arguments import recipe_if_named
from rlhf.apps.cli.env_check import json_object
from rlhf.apps.server_options import access_of, check_reach
from rlhf.config import is_piece
from rlhf.env.config import IsolationKind
from rlhf.env.hosting.hosted import EnvironmentIsolation, isolation_of
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.server.app import EnvironmentServerSettings, environment_uvicorn_config, limits_for_sessions
from rlhf.errors import UserError
from rlhf.http.binding import token_from
from rlhf.http.serving import bound, url_of
from rlhf.runs.trace_export import exporting
from rlhf.untrusted_text import escape_to_line


def run_serve_env(
    environment: str,
    arguments: str,
    isolation: str,
    *,
    max_sessions: int,
    step_seconds: float,
    reset_seconds: float,
    token_env: str | None = None,
    name: Sequence[str] = (),
    certificate: Path | None = None,
    key: Path | None = None,
    limit: Sequence[str] = (),
    **options: Any,
) -> int:
    """Serve until SIGTERM or Ctrl-C. The server's limits depend on `max_sessions`. Raises `UserError`."""
    settings = EnvironmentServerSettings(
        token=token_from(token_env),
        max_sessions=max_sessions,
        access=access_of(name, certificate, key, limit, limits_for_sessions(max_sessions)),
        deadlines=Deadlines(open_seconds=reset_seconds, reset_seconds=reset_seconds, step_seconds=step_seconds),
        **options,
    )
    return serve_environment(environment, arguments, isolation, settings)


def serve_environment(name: str, arguments: str, isolation: str, settings: EnvironmentServerSettings) -> int:
    """Serve an environment, or a recipe's, in an isolation."""
    factory = named_environment(name, json_object(arguments, "--arguments"))
    kinds: tuple[IsolationKind, ...] = get_args(IsolationKind)
    kind = next((kind for kind in kinds if kind == isolation), None)
    if kind is None:
        raise UserError(f"--isolation {isolation!r}: write one of {', '.join(kinds)}")
    check_reach(settings.host, settings.token, settings.access)
    hosting = isolation_of(kind, factory, settings.deadlines, settings.max_sessions)
    with (
        bound(settings.host, settings.port) as listener,
        exporting("environment"),
        asyncio.Runner(loop_factory=event_loop()) as runner,
    ):
        runner.run(serve_and_say(hosting, settings, listener))
    return 0


async def serve_and_say(
    isolation: EnvironmentIsolation, settings: EnvironmentServerSettings, listener: socket.socket
) -> None:
    """Print the server's address and serve."""
    await isolation.start()
    url = url_of(listener, tls=settings.access.certificate is not None)
    try:
        print(f"{escape_to_line(isolation.spec.name)} at {url}, {settings.max_sessions:,} sessions", flush=True)
        config = environment_uvicorn_config(isolation, settings)
        await asyncio.sleep(0)  # a Ctrl-C that came meanwhile ends it here, before uvicorn has anything to undo
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        await isolation.stop()


def event_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed; it halves the cost of a step."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def named_environment(name: str, arguments: dict[str, Any]) -> Factory:
    """Return MODULE:CLASS with the arguments, or a recipe's environment with its arguments replaced. Raises
    `UserError`."""
    if is_piece(name):
        return Factory(name=name, arguments=arguments)
    recipe = recipe_if_named(name, ())
    config = recipe.environment if recipe else None
    if config is None or config.environment is None:
        raise UserError(f"{name!r} is neither MODULE:CLASS, for instance my_environments:Guess, nor a recipe with one")
    return Factory(name=config.environment, arguments=config.arguments | arguments)
