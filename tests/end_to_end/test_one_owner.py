"""A run folder has one owner: whoever starts a second run in it, at any moment and either way, is refused by name."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART, ROOT, RUN_SECONDS, SMALL, Run, command, environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

OPTIONS = (
    *SMALL, "cluster.kind=local", "trainer.updates=12", "trainer.save_every=2", "trainer.eval_every=4",
    "trainer.weight_sync.verify_at_start=false",
)  # fmt: skip
MOMENTS = ("… start", "… generate", "… save", "update  8/")


def started(folder: Path, cache: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    places = (f"run.dir={folder}", f"model.cache_dir={cache}")
    with output.open("w") as told:
        return subprocess.Popen(
            command("train", str(QUICKSTART), *places, *OPTIONS, *more),
            cwd=ROOT, env=environment(), stdout=told, stderr=told, text=True,
        )  # fmt: skip


def test_a_second_start_is_refused_at_every_moment_and_the_first_goes_on_unharmed(tmp_path: Path, cache: Path) -> None:
    folder, output = tmp_path / "runs" / "run", tmp_path / "first.txt"
    first, deadline = started(folder, cache, output), time.monotonic() + RUN_SECONDS
    seconds: dict[Path, subprocess.Popen[str]] = {}
    for number, moment in enumerate(MOMENTS):
        while moment not in output.read_text():
            assert first.poll() is None, output.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        more = ("--resume",) if number % 2 else ()
        told = tmp_path / f"second-{number}.txt"
        seconds[told] = started(folder, cache, told, *more)
    first.send_signal(signal.SIGSTOP)  # it would end before the last has begun, on a machine that is slow to start it
    try:
        for told, process in seconds.items():
            assert process.wait(RUN_SECONDS) == 2, told.read_text()
    finally:
        first.send_signal(signal.SIGCONT)
    assert first.wait(RUN_SECONDS) == 0, output.read_text()
    for told in seconds:
        (line,) = [line for line in told.read_text().splitlines() if line.startswith("error: ")]
        assert f"{folder} belongs to process {''.join(filter(str.isdigit, owner_of(line)))} on " in line
        assert line.endswith("end that run first, or set run.dir to another folder")
    assert [path.name for path in folder.parent.iterdir()] == ["run"]
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"version-000010", "version-000012"}
    assert not list(folder.glob("aside*"))
    run = Run(folder, subprocess.CompletedProcess(first.args, 0, output.read_text(), ""))
    assert [line["update"] for line in run.metrics] == list(range(1, 13))
    trained = [(one.ordinal, one.sample) for one in run.episodes if one.outcome == "trained"]
    assert sorted(trained) == [(ordinal, sample) for ordinal in range(96) for sample in range(4)]
    assert run.summary["outcome"] == "finished"


def owner_of(line: str) -> str:
    return line.partition("belongs to process ")[2].partition(" on ")[0]
