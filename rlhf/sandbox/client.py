"""The sandbox of a server, ours or a stock SandboxFusion's: the same `Runner` as the one in this process."""

from __future__ import annotations

import httpx
from pydantic import ValidationError

from rlhf.sandbox.program import Program, Run, SandboxBroken, SandboxBusy, SandboxUnavailable
from rlhf.sandbox.wire import RunCodeResponse, request_of, run_of

CONNECT_SECONDS = 10.0
BUSY = (429, 503)


class RemoteSandbox:
    """A `Runner` behind `url`. A program is sent once: nothing here repeats it.

    `wait_seconds` is how long an answer may take beyond the program's own time: queueing at the server included.
    """

    def __init__(self, url: str, token: str | None = None, wait_seconds: float = 330.0) -> None:
        self._url, self._wait_seconds = url.rstrip("/"), wait_seconds
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.AsyncClient(base_url=self._url, headers=headers, limits=httpx.Limits(max_connections=None))

    async def start(self) -> None:
        """Run a first program. Raises `SandboxUnavailable`."""
        try:
            first = await self.run(Program(code="print(6 * 7)"))
        except (SandboxBroken, SandboxBusy) as error:
            raise SandboxUnavailable(f"the sandbox at {self._url} cannot be used: {error}") from None
        if first.stdout != "42\n":
            raise SandboxUnavailable(f"the sandbox at {self._url} does not run Python: {first.stderr or first.detail}")

    async def run(self, program: Program) -> Run:
        """What became of `program`. Raises `SandboxBroken`, `SandboxBusy`."""
        timeout = httpx.Timeout(program.wall_seconds + self._wait_seconds, connect=CONNECT_SECONDS)
        try:
            answer = await self._client.post("/run_code", json=request_of(program), timeout=timeout)
        except httpx.HTTPError as error:
            raise SandboxBroken(f"{self._url}/run_code: {type(error).__name__}: {error}") from None
        if answer.status_code in BUSY:
            raise SandboxBusy(f"{self._url}/run_code: {answer.text[:300]}")
        if answer.status_code != 200:
            raise SandboxBroken(f"{self._url}/run_code answered {answer.status_code}: {answer.text[:300]}")
        return self._read(answer)

    async def close(self) -> None:
        await self._client.aclose()

    def _read(self, answer: httpx.Response) -> Run:
        try:
            response = RunCodeResponse.model_validate_json(answer.content)
        except ValidationError as error:
            raise SandboxBroken(f"{self._url}/run_code answered something else: {error.errors()[0]['msg']}") from None
        if (run := run_of(response)) is None:
            raise SandboxBroken(f"{self._url}/run_code: {response.message}")
        return run
