"""Client of a sandbox server, ours or SandboxFusion's, with the interface of the sandbox in this process."""

from __future__ import annotations

import asyncio
import sys
import time

from pydantic import ValidationError

from rlhf.errors import HttpFailed, SandboxBroken, SandboxBusy, SandboxUnavailable
from rlhf.http.client import HttpClient
from rlhf.http.config import HttpConfig
from rlhf.sandbox.program import Program, ProgramResult, ProgramRunner
from rlhf.sandbox.wire import RunCodeResponse, request_of, run_of
from rlhf.untrusted_text import escape_to_line

AGAIN_SECONDS = 1.0


class RemoteSandbox:
    """A `ProgramRunner` that uses the server at `url`. A program is sent once, without retries. `timeout_seconds`
    bounds a call: connecting, queueing at the server, the run and the answer."""

    def __init__(self, url: str, token: str | None = None, timeout_seconds: float = 390.0) -> None:
        once = HttpConfig(attempts=1, concurrency=sys.maxsize)
        self._http = HttpClient(url, once, timeout_seconds=timeout_seconds, token=token)
        self.close = self._http.close

    async def start(self) -> None:
        """Run a test program. Raises `SandboxUnavailable`."""
        try:
            first = await self.run(Program(code="print(6 * 7)"))
        except (SandboxBroken, SandboxBusy) as error:
            raise SandboxUnavailable(f"the sandbox at {self._http.url} cannot be used: {error}") from None
        if first.stdout != "42\n":
            complaint = first.stderr or first.detail
            raise SandboxUnavailable(f"the sandbox at {self._http.url} does not run Python: {complaint}")

    async def run(self, program: Program) -> ProgramResult:
        """Run `program` and return its result. Raises `SandboxBroken`, `SandboxBusy`."""
        try:
            response = RunCodeResponse.model_validate(
                await self._http.post("/run_code", request_of(program)), strict=True
            )
            result = run_of(response)
        except HttpFailed as failure:
            message = escape_to_line(str(failure))
            raise SandboxBusy(message) if failure.kind == "busy" else SandboxBroken(message) from None
        except ValidationError as error:
            raise SandboxBroken(f"{self._http.url}: an invalid answer: {error.errors()[0]['msg']}") from None
        except ValueError as error:  # invalid base64 in files
            raise SandboxBroken(f"{self._http.url}: an invalid answer: {error}") from None
        if result is None:
            raise SandboxBroken(f"{self._http.url}: {escape_to_line(response.message)[:300]}")
        return result


class RetryingRunner:
    """A `ProgramRunner` that sends at most `at_once` programs at a time to `runner`, and retries those that it was too
    busy to run. `SandboxBusy` is raised only if no program finished for `patience_seconds`."""

    def __init__(self, runner: ProgramRunner, at_once: int, patience_seconds: float) -> None:
        self._runner, self._patience_seconds = runner, patience_seconds
        self._slots = asyncio.Semaphore(at_once)
        self._served = 0.0
        self.start, self.close = runner.start, runner.close

    async def run(self, program: Program) -> ProgramResult:
        """Run `program` and return its result. Raises `SandboxBroken`, `SandboxBusy`."""
        async with self._slots:
            began = time.monotonic()
            while True:
                try:
                    result = await self._runner.run(program)
                    self._served = time.monotonic()
                    return result
                except SandboxBusy:
                    if time.monotonic() - max(began, self._served) > self._patience_seconds:
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)
