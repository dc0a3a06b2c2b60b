"""The sandbox's HTTP server: `POST /run_code` with SandboxFusion's format, and `GET /health`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ValidationError

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import LOOPBACK, Access
from rlhf.http.limits import SANDBOX
from rlhf.http.serving import bound, url_of, uvicorn_config
from rlhf.sandbox.pool import Sandbox
from rlhf.sandbox.program import SandboxBroken, SandboxBusy
from rlhf.sandbox.wire import RunCodeRequest, RunCodeResponse, program_of, response_of

BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": RunCodeRequest.model_json_schema()}}}
}


class SandboxErrorBody(BaseModel):
    """The error of a request that was not served."""

    detail: str


class Invalid(BaseModel):
    """A request that failed validation: pydantic's list of errors."""

    detail: list[dict[str, Any]]


PROBLEMS: dict[int | str, dict[str, Any]] = {
    **{status: {"model": SandboxErrorBody, "description": "An error"} for status in (401, 413, 415, 503)},
    422: {"model": Invalid, "description": "Not a request"},
}


def make_app(
    sandbox: Sandbox, token: str | None, access: Access | None = None, *, host: str = LOOPBACK
) -> AccessMiddleware:
    """The application. It probes the machine at startup; with a `token`, clients must send it."""

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await sandbox.start()
        yield
        await sandbox.close()

    app = FastAPI(title="rlhf sandbox", version="1.0.0", lifespan=life)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """What isolates the code, and how busy it is."""
        return {
            "status": "healthy",
            "isolation": str(sandbox.chosen.isolation.level),
            "limits": sandbox.chosen.isolation.bounds,
            "passed_over": {str(level): reason for level, reason in sandbox.chosen.passed_over},
            "running": sandbox.running,
            "waiting": sandbox.waiting,
            "runs_at_once": sandbox.queue.runs,
        }

    @app.post("/run_code", responses=PROBLEMS, openapi_extra=BODY)
    async def run_code(request: Request) -> RunCodeResponse:
        """Run a Python program. 503 when too many wait; status SandboxError when the program is not to blame."""
        program = program_of(_parsed(await request.body()))
        try:
            return response_of(await sandbox.run(program))
        except SandboxBusy as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        except SandboxBroken as error:
            return RunCodeResponse(status="SandboxError", message=str(error))

    access = access or Access(limits=SANDBOX)
    return AccessMiddleware(app, lambda status, why: {"detail": why}, access, host=host, token=token)


def _parsed(body: bytes) -> RunCodeRequest:
    try:
        return RunCodeRequest.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(422, error.errors(include_url=False, include_context=False, include_input=False)) from None


async def serve_sandbox(sandbox: Sandbox, host: str, port: int, token: str | None, access: Access) -> None:
    """Serve until the process is told to end. Raises `UserError` if the address is not available, and
    `SandboxUnavailable` before anything is served."""
    config = uvicorn_config(make_app(sandbox, token, access, host=host), access)
    with bound(host, port) as listener:
        await sandbox.start()
        print(f"isolation: {sandbox.chosen}", flush=True)
        print(f"serving /run_code at {url_of(listener, tls=config.is_ssl)}", flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])
