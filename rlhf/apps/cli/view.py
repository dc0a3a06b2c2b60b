"""`rlhf view`: runs in the browser."""

from __future__ import annotations

from pathlib import Path
from secrets import token_urlsafe
from socket import gethostname
from typing import Annotated

import typer

from rlhf.apps.arguments import run_named
from rlhf.apps.server_options import Certificate, Key, LimitTexts, Names, access_of, check_reach
from rlhf.http.binding import HttpLimits, is_loopback, token_from

PORT = 8400


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN|DIR]...", help="Run folders, or folders with runs [runs].", parser=run_named),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = PORT,
    host: Annotated[str, typer.Option(help="Address; beyond loopback, requests need a token.")] = "127.0.0.1",
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable with the token [default: a new one].")
    ] = None,
    name: Names = None,
    certificate: Certificate = None,
    key: Key = None,
    limit: LimitTexts = None,
) -> None:
    """Show runs live in the browser, down to every token."""
    import uvicorn

    from rlhf.apps.dashboard.app import dashboard_app
    from rlhf.apps.dashboard.library import Library, find_runs
    from rlhf.http.serving import bound, url_of, uvicorn_config

    folders = runs or [Path("runs")]
    found = find_runs(folders)
    token, access = token_from(token_env), access_of(name, certificate, key, limit, HttpLimits())
    if token is None and not is_loopback(host):
        token = token_urlsafe()
    check_reach(host, token, access)
    page = dashboard_app(Library(found, folders), token, lambda: server.should_exit, host=host, access=access)
    server = uvicorn.Server(config := uvicorn_config(page, access))
    with bound(host, port) as listener:
        url = url_of(listener, tls=config.is_ssl).replace("//0.0.0.0:", f"//{gethostname()}:")
        opening = "" if token is None else f"/?token={f'${token_env}' if token_env else token}"
        print(f"{len(found)} {'run' if len(found) == 1 else 'runs'} at {url}{opening}", flush=True)
        server.run(sockets=[listener])
