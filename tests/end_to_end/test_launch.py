"""`rlhf launch` on this machine alone: the same nodes, orders and ends as over ssh (`tests/network/`), without root."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART, ROOT, RUN_SECONDS, SMALL, command, environment
from tests.end_to_end.test_clean_ends import MARK, marked, until
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def launched(folder: Path, cache: Path, *words: str) -> subprocess.Popen[str]:
    """A launch whose output goes to `out` and `err`."""
    (folder / "hosts.txt").write_text("localhost gpus=0\n")
    places = (f"run.dir={folder / 'run'}", f"model.cache_dir={cache}")
    settings = (*SMALL, "model.warmup=null", "data.eval=null", *words)
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        return subprocess.Popen(
            command("launch", str(QUICKSTART), "--hosts", str(folder / "hosts.txt"), *places, *settings),
            cwd=ROOT, env=environment() | {MARK: str(folder)}, stdout=out, stderr=err, text=True,
        )  # fmt: skip


def test_a_launch_saves_and_leaves_on_a_signal_and_another_one_finishes(tmp_path: Path, cache: Path) -> None:
    first = launched(tmp_path, cache, "trainer.updates=100000")
    assert until(lambda: "update " in (tmp_path / "out").read_text() or first.poll() is not None, RUN_SECONDS)
    first.send_signal(signal.SIGINT)
    assert first.wait(scaled(60)) == 75, (tmp_path / "err").read_text()
    assert marked(tmp_path) == []
    saved = max(int(path.name.removeprefix("version-")) for path in (tmp_path / "run/checkpoints").glob("version-*"))

    second = launched(tmp_path, cache, f"trainer.updates={saved + 1}", "--resume")
    assert second.wait(RUN_SECONDS) == 0, (tmp_path / "err").read_text()
    assert json.loads((tmp_path / "run/summary.json").read_text())["updates"] == saved + 1
    assert (tmp_path / "run/logs/hosts.log").read_text().count("is the head of run quickstart-") == 2
    assert marked(tmp_path) == []
