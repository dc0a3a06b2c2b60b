"""The sandbox's HTTP server: `POST /run_code` with SandboxFusion's format, and `GET /health`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from rlhf.errors import SandboxBroken, SandboxBusy
from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import LOOPBACK, SANDBOX, Access
from rlhf.http.serving import StrictRoute, bound, unknown_path, url_of, uvicorn_config
from rlhf.sandbox.pool import Sandbox
from rlhf.sandbox.wire import RunCodeRequest, RunCodeResponse, program_of, response_of

PROBLEMS: dict[int | str, dict[str, Any]] = {status: {"description": "An error"} for status in (401, 413, 415, 503)}


def make_app(
    sandbox: Sandbox, token: str | None, access: Access | None = None, *, host: str = LOOPBACK
) -> AccessMiddleware:
    """Return the application. It probes the machine at startup; with a `token`, clients must send it."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await sandbox.start()
        yield
        await sandbox.close()

    app = FastAPI(title="rlhf sandbox", lifespan=life, exception_handlers={RequestValidationError: _invalid})
    app.router.route_class, app.router.default = StrictRoute, unknown_path

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {
            "status": "healthy",
            "isolation": str(sandbox.chosen.isolation.level),
            "limits": sandbox.chosen.isolation.bounds,
            "passed_over": {str(level): reason for level, reason in sandbox.chosen.passed_over},
            "running": sandbox.running,
            "waiting": sandbox.waiting,
            "runs_at_once": sandbox.queue.runs,
        }

    @app.post("/run_code", responses=PROBLEMS)
    async def run_code(request: RunCodeRequest) -> RunCodeResponse:
        """Run a Python program. 503 when too many wait; status SandboxError when the program is not to blame."""
        try:
            return response_of(await sandbox.run(program_of(request)))
        except SandboxBusy as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except SandboxBroken as error:
            return RunCodeResponse(status="SandboxError", message=str(error))

    access = access or Access(limits=SANDBOX)
    return AccessMiddleware(app, lambda status, why: {"detail": why}, access, host=host, token=token)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    """Return a validation error as a response, without repeating the body."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse(
        {"detail": [{key: found[key] for key in ("type", "loc", "msg")} for found in error.errors()]}, 422
    )


async def serve_sandbox(sandbox: Sandbox, host: str, port: int, token: str | None, access: Access) -> None:
    """Serve until the process gets a signal to end. Raises `UserError`, and before it `SandboxUnavailable`."""
    config = uvicorn_config(make_app(sandbox, token, access, host=host), access)
    with bound(host, port) as listener:
        await sandbox.start()
        print(f"isolation: {sandbox.chosen}", flush=True)
        print(f"serving /run_code at {url_of(listener, tls=config.is_ssl)}", flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])
