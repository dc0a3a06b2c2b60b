"""What this cluster cannot do is said in one line, and nothing is queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import QUICKSTART
from tests.slurm.jobs import rlhf_slurm
from tests.slurm.private import PrivateSlurm


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--nodes", "1", "--partition", "nowhere"), "nowhere"),
        (("--nodes", "3"), "3 nodes"),
        (("--nodes", "1", "--time", "0"), "time"),
        (("--nodes", "1", "--account", "-x"), "account"),
    ],
)
def test_one_line_says_what_is_wrong(slurm: PrivateSlurm, tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    done = rlhf_slurm(slurm, str(QUICKSTART), *words, "--submit", f"run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert named in line
    assert slurm.run("squeue", "-h") == ""
