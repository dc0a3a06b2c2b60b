"""SandboxFusion's `POST /run_code`: requests and responses in the format of its client 0.3.7."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Base64Bytes, BaseModel, Field

from rlhf.sandbox.program import MIB, Program, ProgramResult, TerminationReason


class RunCodeRequest(BaseModel):
    """Code to run. Times are in seconds; `compile_timeout` is for compiled languages."""

    code: str
    language: Literal["python"] = "python"
    stdin: str | None = None
    compile_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    run_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    memory_limit_MB: int = -1
    """0 or less means all that the server allows."""
    files: dict[str, Base64Bytes | None] = {}
    """File contents in base64, by relative path."""
    fetch_files: list[str] = []


class RunResult(BaseModel):
    """The result of one run."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    return_code: Annotated[int, Field(ge=-256, le=2**32)] | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    """`message` explains the `status` to people."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str
    compile_result: RunResult | None = None
    run_result: RunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


STATUS: dict[TerminationReason, Literal["Finished", "Error", "TimeLimitExceeded"]] = {
    TerminationReason.EXITED: "Finished",
    TerminationReason.TIME: "TimeLimitExceeded",
    TerminationReason.EXCESS: "Error",
    TerminationReason.REFUSED: "Error",
}


def program_of(request: RunCodeRequest) -> Program:
    return Program(
        code=request.code,
        stdin=(request.stdin or "").encode(errors="replace"),
        files={path: content or b"" for path, content in request.files.items()},
        fetch=tuple(request.fetch_files),
        wall_seconds=request.run_timeout,
        memory_bytes=max(request.memory_limit_MB, 0) * MIB,
    )


def request_of(program: Program) -> dict[str, object]:
    return {
        "code": program.code.encode(errors="replace").decode(),  # encoded as this sandbox would write it to a file
        "language": "python",
        "stdin": program.stdin.decode(errors="replace"),
        "run_timeout": program.wall_seconds,
        "memory_limit_MB": program.memory_bytes // MIB or -1,
        "files": {path: base64.b64encode(content).decode() for path, content in program.files.items()},
        "fetch_files": list(program.fetch),
    }


def response_of(run: ProgramResult) -> RunCodeResponse:
    result = RunResult(
        status=STATUS[run.ending],
        execution_time=run.seconds,
        return_code=run.return_code,
        stdout=run.stdout,
        stderr=run.stderr,
    )
    return RunCodeResponse(
        status="Success" if run.succeeded else "Failed",
        message=run.detail,
        run_result=result,
        files={path: base64.b64encode(content).decode() for path, content in run.files.items()},
    )


def run_of(response: RunCodeResponse) -> ProgramResult | None:
    """Return the program's result in a response; None for a response without a result."""
    result = response.run_result
    if response.status == "SandboxError" or result is None:
        return None
    endings = {status: ending for ending, status in STATUS.items() if ending is not TerminationReason.REFUSED}
    return ProgramResult(
        ending=endings[result.status],
        return_code=result.return_code,
        stdout=result.stdout or "",
        stderr=result.stderr or "",
        seconds=result.execution_time or 0.0,
        detail=response.message,
        files={path: base64.b64decode(content) for path, content in response.files.items()},
    )
