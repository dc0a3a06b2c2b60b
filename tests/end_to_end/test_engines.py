"""Engines that are added to a run and removed from it while it samples."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from rlhf.apps.cli.audit import run_audit
from rlhf.controller.attempt import updates_of
from rlhf.runs.episode_parts import read_episodes
from tests.end_to_end.running import QUICKSTART, ROOT, RUN_SECONDS, command, environment
from tests.pace import scaled

UPDATES = 60
pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


def test_engines_come_by_the_load_and_by_hand_and_one_is_removed_and_no_sample_is_lost(
    tmp_path: Path, cache: Path
) -> None:
    folder = tmp_path / "run"
    settings = (
        f"run.dir={folder}", f"model.cache_dir={cache}", "trainer.eval_every=0", "data.eval=null",
        "rollout.engines={min: 1, max: 2}", f"trainer.updates={UPDATES}",
    )  # fmt: skip
    with (tmp_path / "output.txt").open("w") as output:
        run = subprocess.Popen(
            command("train", str(QUICKSTART), *settings), cwd=ROOT, env=environment(), stdout=output, stderr=output
        )

    def until(update: int) -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while updates_of(folder / "metrics.jsonl") < update and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)

    try:
        until(2)
        assert engines("list", folder) == ["engine-0"]
        until(3)
        while engines("list", folder) == ["engine-0"]:  # the learner waits for more than half of its time
            assert run.poll() is None
        assert engines("add", folder, "1") == ["engine-0", "engine-1", "engine-2"]
        added_at = updates_of(folder / "metrics.jsonl")
        until(added_at + 2)
        assert engines("remove", folder, "engine-0") == ["engine-1", "engine-2"]
        assert engines("remove", folder, "engine-2") == ["engine-1"]
        refused = ask("remove", folder, "engine-1")
        assert refused.returncode == 2
        assert "the run needs 1 engines (rollout.min_engines)" in refused.stderr
        assert run.wait(RUN_SECONDS) == 0, (tmp_path / "output.txt").read_text()
    finally:
        run.terminate()
    assert run_audit(folder) == 0
    said = (tmp_path / "output.txt").read_text()
    assert "2 engines serve now, because the learner waited" in said, said
    sampled = [(one.update, one.engine) for one in read_episodes(folder / "episodes")]
    assert {engine for update, engine in sampled if update == added_at + 2} == {"engine-0", "engine-1", "engine-2"}
    assert "engine-1" in {engine for update, engine in sampled if update == UPDATES}


def ask(do: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("engines", do, str(folder), *arguments), env=environment(), capture_output=True, text=True,
        timeout=scaled(300),
    )  # fmt: skip


def engines(do: str, folder: Path, *arguments: str) -> list[str]:
    """The engines that serve after a command."""
    answered = ask(do, folder, *arguments)
    assert answered.returncode == 0, answered.stderr
    return answered.stdout.split()
