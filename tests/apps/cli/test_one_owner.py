"""`rlhf train` in a folder that somebody owns is refused before anything heavy is imported, and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf.runs.folder import RunFolder
from tests.apps.cli.conftest import Command


@pytest.mark.parametrize("more", [(), ("--resume",), ("--resume", "--start-over")])
def test_a_folder_that_is_owned_is_refused_by_its_owner_s_name(
    rlhf: Command, recipe: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    mine = RunFolder.create(tmp_path / "runs" / "run")
    (mine.checkpoints / "writing-000005-1").mkdir()
    ended = rlhf("train", recipe, f"run.dir={mine.path}", *more)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {mine.path} belongs to process {os.getpid()} on ")
    assert ended.stderr.count("\n") == 1
    assert ended.processor_seconds < 4
    mine.check()
    assert (mine.checkpoints / "writing-000005-1").is_dir()
    assert [path.name for path in mine.path.parent.iterdir()] == ["run"]


def test_starting_over_is_for_runs_that_are_resumed(rlhf: Command, recipe: Path) -> None:
    ended = rlhf("train", recipe, "--start-over")
    assert (ended.returncode, "--start-over goes with --resume" in ended.stderr) == (2, True)
