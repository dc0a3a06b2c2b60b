"""A disk that is full ends a run in one line, which says what is intact; with room again it goes on."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART, ROOT, RUN_SECONDS, SMALL, Run, command, environment, train

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

OPTIONS = (
    *SMALL, "cluster.kind=local", "trainer.save_every=1", "trainer.weight_sync.verify_at_start=false",
    "trainer.keep_checkpoints=9", "data.eval=null",
)  # fmt: skip


def test_a_run_whose_disk_is_full_says_which_checkpoint_is_intact_and_goes_on_from_it(
    tmp_path: Path, cache: Path
) -> None:
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    places = (f"run.dir={disk / 'run'}", f"model.cache_dir={cache}")
    run = shlex.join(command("train", str(QUICKSTART), *places, *OPTIONS, "trainer.updates=24"))
    # A mount of its own, which nobody else sees and which goes with the shell; 40 MiB hold a few checkpoints.
    script = f"mount -t tmpfs -o size=40m none {disk} && {{ {run}; code=$?; cp -r {disk}/run {kept}; exit $code; }}"
    ended = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr[-3000:]
    assert "Traceback" not in ended.stderr + ended.stdout
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    newest = max((kept / "checkpoints").glob("version-*")).name
    assert f"the disk of {disk / 'run'} is full" in line
    assert f"checkpoints/{newest} is intact, and --resume continues from it" in line
    assert "is full" in json.loads((kept / "summary.json").read_text())["outcome"]
    version = int(newest.removeprefix("version-"))
    shutil.move(kept, disk / "run")
    more = train(disk / "run", cache, *OPTIONS, f"trainer.updates={version + 1}", "--resume")
    assert f"resuming from {newest}" in more.process.stdout
    assert len(Run(disk / "run", more.process).metrics) == version + 1
