"""The stock client of SandboxFusion, unmodified and in a virtual environment of its own, runs code on our sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.commanded import commanded
from tests.ecosystem.venvs import run

pytestmark = pytest.mark.ecosystem


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, Any]]:
    with commanded("sandbox", "--memory-mb", "256") as (url, _):
        yield run("sandbox_fusion", "sandbox_fusion_client.py", url)


def test_a_good_program_succeeds_with_its_output(told: dict[str, Any]) -> None:
    assert told["ok"] == {
        "status": "Success", "run": "Finished", "code": 0, "stdout": "hello\n", "error": "", "files": {}
    }  # fmt: skip


def test_files_go_in_and_come_out(told: dict[str, Any]) -> None:
    assert told["files"]["files"] == {"out": "YWJhYg=="}


def test_an_exit_code_is_told(told: dict[str, Any]) -> None:
    assert (told["exit 3"]["status"], told["exit 3"]["run"], told["exit 3"]["code"]) == ("Failed", "Finished", 3)


def test_an_endless_loop_passes_its_time_limit(told: dict[str, Any]) -> None:
    assert (told["endless loop"]["status"], told["endless loop"]["run"]) == ("Failed", "TimeLimitExceeded")


def test_a_memory_hog_fails(told: dict[str, Any]) -> None:
    assert told["memory hog"]["status"] == "Failed"
    assert told["memory hog"]["run"] == "Error" or told["memory hog"]["error"].startswith("MemoryError")


def test_the_network_is_not_there(told: dict[str, Any]) -> None:
    assert told["network"]["status"] == "Failed"
    assert "Operation not permitted" in told["network"]["error"]
