"""`rlhf serve sandbox` runs model-written Python for clients of SandboxFusion's `/run_code`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rlhf.apps.server_options import Certificate, Key, LimitTexts, Names, access_of, check_reach
from rlhf.http.binding import SANDBOX, token_from
from rlhf.runs.trace_export import exporting


def sandbox(
    host: Annotated[
        str, typer.Option(help="Address to listen on; other than loopback it needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    runs: Annotated[int, typer.Option(min=1, help="Programs that run at the same time.")] = os.cpu_count() or 1,
    waiting: Annotated[int, typer.Option(min=0, help="Programs that may wait; others get a 503.")] = 1024,
    wait_seconds: Annotated[float, typer.Option(min=0.1, help="Longest time that a program waits.")] = 300.0,
    run_seconds: Annotated[float, typer.Option(min=0.1, help="Longest time that a program runs.")] = 60.0,
    memory_mb: Annotated[int, typer.Option(min=64, help="Memory of one run, in MiB.")] = 1024,
    disk_mb: Annotated[int, typer.Option(min=1, help="Files of one run, in MiB.")] = 64,
    processes: Annotated[int, typer.Option(min=1, help="Processes and threads of one run.")] = 64,
    python: Annotated[Path | None, typer.Option(help="The Python that runs the code, with its packages.")] = None,
    allow_rlimits: Annotated[bool, typer.Option(help="Run code without isolation if none works.")] = False,
    token_env: Annotated[str | None, typer.Option(help="Environment variable with the bearer token.")] = None,
    name: Names = None,
    certificate: Certificate = None,
    key: Key = None,
    limit: LimitTexts = None,
) -> None:
    """Run model-written Python in isolation, over HTTP."""
    import asyncio

    from rlhf.sandbox.pool import Queue, Sandbox
    from rlhf.sandbox.program import MIB, SandboxLimits
    from rlhf.sandbox.server import serve_sandbox

    token = token_from(token_env)
    access = access_of(name, certificate, key, limit, SANDBOX)
    check_reach(host, token, access)
    limits = SandboxLimits(
        wall_seconds=run_seconds, memory_bytes=memory_mb * MIB, disk_bytes=disk_mb * MIB, processes=processes
    )
    queue = Queue(runs=runs, waiting=waiting, wait_seconds=wait_seconds)
    path = str(python.absolute()) if python else None
    programs = Sandbox(limits, queue, python=path, allow_rlimits=allow_rlimits)
    with exporting("sandbox"):
        asyncio.run(serve_sandbox(programs, host, port, token, access))
