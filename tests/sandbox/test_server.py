"""`/run_code` as SandboxFusion has it, on a real server on loopback."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from rlhf.errors import SandboxBroken
from rlhf.sandbox.client import RemoteSandbox
from rlhf.sandbox.program import Program, TerminationReason

pytestmark = pytest.mark.engine
TOKEN = "a-token"
SERVE = (
    "import typer; from rlhf.apps.failures import reporting_failures; "
    "from rlhf.apps.cli.serve_sandbox import sandbox; "
    "import sys; app = typer.Typer(); app.command()(sandbox); "
    "sys.exit(reporting_failures(lambda: app(standalone_mode=False) or 0)())"
)


def serve(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVE, "--port", "0", *options]
    environment = os.environ | {"A_TOKEN": TOKEN}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = serve(
        "--runs", "1", "--waiting", "1", "--memory-mb", "128", "--run-seconds", "20", "--token-env", "A_TOKEN"
    )
    assert server.stdout
    assert server.stdout.readline().startswith("isolation: ")
    yield server.stdout.readline().split()[-1]
    server.terminate()
    assert server.wait(30) in (0, -15)


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        yield client


async def run_code(client: httpx.AsyncClient, code: str, **fields: object) -> dict[str, Any]:
    answer = await client.post("/run_code", json={"code": code, "language": "python"} | fields)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_a_program_that_ends_well_is_a_success(client: httpx.AsyncClient) -> None:
    files = {"in.txt": base64.b64encode(b"file").decode(), "empty": None}
    code = "import sys; open('out.txt', 'w').write(open('in.txt').read().upper()); print(sys.stdin.read())"
    told = await run_code(client, code, stdin="input", files=files, fetch_files=["out.txt", "absent"])
    seconds = told["run_result"].pop("execution_time")
    assert 0 < seconds < 20
    assert told == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "input\n", "stderr": ""},
        "executor_pod_name": None,
        "files": {"out.txt": base64.b64encode(b"FILE").decode()},
    }


@pytest.mark.parametrize(
    ("code", "status", "return_code"),
    [
        ("import sys; sys.exit(3)", "Finished", 3),
        ("while True: pass", "TimeLimitExceeded", None),
        ("x = bytearray(1 << 30)", "Finished", 1),
        ("import socket; socket.create_connection(('127.0.0.1', 1), 1)", "Finished", 1),
    ],
)
async def test_a_program_that_does_not_end_well_has_failed(
    client: httpx.AsyncClient, code: str, status: str, return_code: int | None
) -> None:
    told = await run_code(client, code, run_timeout=2)
    assert (told["status"], told["run_result"]["status"]) == ("Failed", status)
    assert told["run_result"]["return_code"] == return_code


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"language": "python"}, "code"),
        ({"code": "1", "language": "cobol"}, "language"),
        ({"code": "1", "run_timeout": 0}, "run_timeout"),
        ({"code": "1", "files": {"a": "not base64!"}}, "files"),
        ([], ""),
    ],
)
async def test_a_request_that_makes_no_sense_is_422_and_names_the_field(
    client: httpx.AsyncClient, body: object, field: str
) -> None:
    answer = await client.post("/run_code", json=body)
    assert answer.status_code == 422
    assert field in str(answer.json()["detail"][0]["loc"])


async def test_without_the_token_nothing_runs(client: httpx.AsyncClient) -> None:
    for header in ("", "Bearer wrong", TOKEN):
        answer = await client.post("/run_code", json={"code": "1"}, headers={"Authorization": header})
        assert answer.status_code == 401


async def test_a_full_queue_is_503_and_health_answers_meanwhile(client: httpx.AsyncClient) -> None:
    naps = [asyncio.create_task(run_code(client, "import time; time.sleep(2)")) for _ in range(2)]
    while (health := (await client.get("/health")).json())["waiting"] < 1:
        await asyncio.sleep(0.02)
    assert health["status"] == "healthy"
    assert health["limits"].keys() == {"memory", "processes", "disk", "processor"}
    refused = await client.post("/run_code", json={"code": "1"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert [told["status"] for told in await asyncio.gather(*naps)] == ["Success"] * 2


async def test_our_client_gives_the_same_run_as_a_sandbox_here(url: str) -> None:
    remote = RemoteSandbox(url, TOKEN)
    await remote.start()
    run = await remote.run(Program(code="import sys; print(sys.stdin.read()); sys.exit(2)", stdin=b"in"))
    assert (run.ending, run.return_code, run.stdout) == (TerminationReason.EXITED, 2, "in\n")
    slow = await remote.run(Program(code="while True: pass", wall_seconds=0.5))
    assert slow.ending is TerminationReason.TIME
    await remote.close()


async def test_a_server_that_is_not_there_or_refuses_gives_no_run(url: str) -> None:
    for wrong, complaint in ((RemoteSandbox("http://127.0.0.1:9"), "ConnectError"), (RemoteSandbox(url), "401")):
        with pytest.raises(SandboxBroken, match=complaint):
            await wrong.run(Program(code="1"))
        await wrong.close()
