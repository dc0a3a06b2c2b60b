"""`rlhf view`: runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf.commands.server_options import Certificate, Key, LimitTexts, Names, access_of, check_reach
from rlhf.http.binding import HttpLimits, token_from

PORT = 8400


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN|DIR]...", help="Run folders, or folders with runs [runs]."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="Address; other than loopback it needs a token.")] = "127.0.0.1",
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the bearer token.")] = None,
    name: Names = None,
    certificate: Certificate = None,
    key: Key = None,
    limit: LimitTexts = None,
) -> None:
    """Show runs in the browser, live: metrics, episodes, and every token of one."""
    import uvicorn

    from rlhf.dashboard.app import dashboard_app
    from rlhf.dashboard.library import Library, find_runs
    from rlhf.http.serving import bound, url_of, uvicorn_config

    found = find_runs(runs or [Path("runs")])
    token, access = token_from(token_env), access_of(name, certificate, key, limit, HttpLimits())
    check_reach(host, token, access)
    page = dashboard_app(Library(found), token, lambda: server.should_exit, host=host, access=access)
    server = uvicorn.Server(config := uvicorn_config(page, access))
    with bound(host, port) as listener:
        print(f"{len(found)} runs at {url_of(listener, tls=config.is_ssl)}", flush=True)
        server.run(sockets=[listener])
