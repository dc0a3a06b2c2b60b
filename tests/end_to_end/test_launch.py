"""`rlhf launch` on this machine alone: the same nodes, orders and ends as over ssh (`tests/network/`), without root."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART, ROOT, RUN_SECONDS, SMALL, command, environment
from tests.end_to_end.test_clean_ends import MARK, marked

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def test_a_launch_on_this_machine_trains_and_leaves_nothing_running(tmp_path: Path, cache: Path) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("localhost gpus=0\n")
    places = (f"run.dir={tmp_path / 'run'}", f"model.cache_dir={cache}")
    settings = (*SMALL, "model.warmup=null", "data.eval=null", "trainer.updates=2")
    ended = subprocess.run(
        command("launch", str(QUICKSTART), "--hosts", str(hosts), *places, *settings),
        cwd=ROOT, env=environment() | {MARK: str(tmp_path)}, capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "2 updates" in ended.stdout
    assert "is the head of run quickstart-" in (tmp_path / "run" / "logs" / "hosts.log").read_text()
    assert marked(tmp_path) == []
