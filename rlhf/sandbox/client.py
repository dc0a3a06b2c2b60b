"""Client of a sandbox server, ours or SandboxFusion's, with the interface of the sandbox in this process
(`ProgramRunner`)."""

from __future__ import annotations

import asyncio
import time

import httpx
from pydantic import ValidationError

from rlhf.http.exchange import HttpResponse, client, json_body, send_request
from rlhf.http.untrusted_text import InvalidJson, escape_to_line, read_json
from rlhf.sandbox.program import Program, ProgramResult, ProgramRunner, SandboxBroken, SandboxBusy, SandboxUnavailable
from rlhf.sandbox.wire import RunCodeResponse, request_of, run_of

CONNECT_SECONDS = 10.0
BUSY = (429, 503)
AGAIN_SECONDS = 1.0
JSON = {"Content-Type": "application/json"}


class RemoteSandbox:
    """A `ProgramRunner` that uses the server at `url`. A program is sent once, without retries.

    `wait_seconds` is added to the program's own time limit: the time for connecting, queueing at the server and the
    answer.
    """

    def __init__(self, url: str, token: str | None = None, wait_seconds: float = 330.0) -> None:
        self._url, self._wait_seconds = url.rstrip("/"), wait_seconds
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = client(headers=headers, limits=httpx.Limits(max_connections=None))

    async def start(self) -> None:
        """Run a test program. Raises `SandboxUnavailable`."""
        try:
            first = await self.run(Program(code="print(6 * 7)"))
        except (SandboxBroken, SandboxBusy) as error:
            raise SandboxUnavailable(f"the sandbox at {self._url} cannot be used: {error}") from None
        if first.stdout != "42\n":
            raise SandboxUnavailable(f"the sandbox at {self._url} does not run Python: {first.stderr or first.detail}")

    async def run(self, program: Program) -> ProgramResult:
        """Run `program` and return its result. Raises `SandboxBroken`, `SandboxBusy`."""
        where, seconds = f"{self._url}/run_code", program.wall_seconds + self._wait_seconds
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        request = self._client.build_request(
            "POST", where, content=json_body(request_of(program)), headers=JSON, timeout=timeout
        )
        try:
            async with asyncio.timeout(seconds):
                answer = await send_request(self._client, request)
            return _run_in(where, answer)
        except TimeoutError:
            raise SandboxBroken(f"{where}: no answer within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise SandboxBroken(f"{where}: {type(error).__name__}: {error}") from None
        except InvalidJson as error:
            raise SandboxBroken(f"{where} answered something else: {error}") from None

    async def close(self) -> None:
        await self._client.aclose()


class RetryingRunner:
    """A `ProgramRunner` that sends at most `at_once` programs at a time to `runner`, and retries when it is busy.

    A program that was refused because the sandbox was busy has not run, so a retry is safe. Programs that use all of
    their time delay others but do not make them fail. `SandboxBusy` is raised only if no program finished for
    `patience_seconds`.
    """

    def __init__(self, runner: ProgramRunner, at_once: int, patience_seconds: float) -> None:
        self._runner, self._patience_seconds = runner, patience_seconds
        self._slots = asyncio.Semaphore(at_once)
        self._served = 0.0

    async def start(self) -> None:
        await self._runner.start()

    async def run(self, program: Program) -> ProgramResult:
        """Run `program` and return its result. Raises `SandboxBroken`, `SandboxBusy`."""
        async with self._slots:
            asked = time.monotonic()
            while True:
                try:
                    result = await self._runner.run(program)
                    self._served = time.monotonic()
                    return result
                except SandboxBusy:
                    if time.monotonic() - max(asked, self._served) > self._patience_seconds:
                        raise
                    await asyncio.sleep(AGAIN_SECONDS)

    async def close(self) -> None:
        await self._runner.close()


def _run_in(where: str, answer: HttpResponse) -> ProgramResult:
    """Parse an answer into a result. Raises `SandboxBroken`, `SandboxBusy`, `InvalidJson`."""
    if answer.status != 200:
        message = f"{where} answered {answer.status}: {escape_to_line(answer.content[:300].decode(errors='replace'))}"
        raise SandboxBusy(message) if answer.status in BUSY else SandboxBroken(message)
    try:
        response = RunCodeResponse.model_validate(read_json(answer.content), strict=True)
        run = run_of(response)
    except ValidationError as error:
        raise InvalidJson(error.errors()[0]["msg"]) from None
    except ValueError as error:  # invalid base64 in files
        raise InvalidJson(str(error)) from None
    if run is None:
        raise SandboxBroken(f"{where}: {escape_to_line(response.message)[:300]}")
    return run
