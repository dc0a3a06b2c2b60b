"""schemathesis, unmodified, draws requests from the OpenAPI documents of our servers, and holds the answers to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commanded import commanded
from tests.ecosystem.venvs import environment, python

pytestmark = pytest.mark.ecosystem
EXAMPLES, FUZZING_SECONDS, RUN_SECONDS = 25, 25, 150
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SERVERS = {
    "environment": ("env", "rlhf.env.tools:CalculatorEnvironment"),
    "reward": ("reward", "exact"),
    "sandbox": ("sandbox", "--memory-mb", "256", "--run-seconds", "1"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_no_request_of_the_schema_breaks_a_server_and_no_answer_breaks_the_schema(name: str, tmp_path: Path) -> None:
    with commanded(*SERVERS[name]) as (url, _):
        words = [str(python("schemathesis").parent / "schemathesis"), "run", f"{url}/openapi.json"]
        words += ["--checks", CHECKS, "--max-examples", str(EXAMPLES), "--max-time", str(FUZZING_SECONDS)]
        words += ["--seed", "1", "--no-shrink", "--request-timeout", "20", "--warnings", "off", "--continue-on-failure"]
        ended = subprocess.run(
            words, capture_output=True, text=True, timeout=RUN_SECONDS, env=environment(), cwd=tmp_path
        )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
