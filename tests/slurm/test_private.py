"""The SLURM that the other tests stand on behaves as one does: steps on both nodes, signals, requeues, cancels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.slurm.configuration import NODES, REQUEUE_SECONDS
from tests.slurm.private import PrivateSlurm
from tests.slurm.processes import until, with_variable

pytestmark = pytest.mark.timeout(120)

REQUEUES_ITSELF = """#!/bin/bash
#SBATCH --requeue --open-mode=append --nodes=2 --time=2 --signal=B:USR1@90
trap 'echo signalled; scontrol requeue $SLURM_JOB_ID' USR1
echo "start ${SLURM_RESTART_COUNT:-0}"
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
sleep 300 & wait
sleep 300 & wait
"""


def submit(slurm: PrivateSlurm, *words: str) -> str:
    return slurm.run("sbatch", "--parsable", *words).strip()


def state(slurm: PrivateSlurm, job: str) -> str:
    shown = slurm.run("scontrol", "show", "job", job)
    return shown.partition("JobState=")[2].split()[0]


def test_a_step_runs_on_both_nodes_from_within_a_job(slurm: PrivateSlurm, tmp_path: Path) -> None:
    said = tmp_path / "said"
    step = "srun --nodes=2 --ntasks=2 bash -c 'echo $SLURMD_NODENAME $SLURM_NODEID'"
    job = submit(slurm, "--nodes=2", f"--output={said}", "--wrap", step)
    assert until(lambda: state(slurm, job) == "COMPLETED", 30)
    assert sorted(said.read_text().split("\n")[:2]) == [f"{node} {at}" for at, node in enumerate(NODES)]


def test_scancel_ends_a_job(slurm: PrivateSlurm) -> None:
    job = submit(slurm, "--output=/dev/null", "--wrap", "sleep 300")
    assert until(lambda: state(slurm, job) == "RUNNING", 30)
    slurm.run("scancel", job)
    assert until(lambda: state(slurm, job) == "CANCELLED" and not with_variable("SLURM_JOB_ID", job), 10)


def test_a_job_hears_of_its_time_limit_requeues_itself_and_starts_again(slurm: PrivateSlurm, tmp_path: Path) -> None:
    script, said = tmp_path / "job.sh", tmp_path / "said"
    script.write_text(REQUEUES_ITSELF)
    job = submit(slurm, f"--output={said}", str(script))
    assert until(lambda: said.exists() and "signalled" in said.read_text(), 60)
    assert until(lambda: state(slurm, job) == "COMPLETED", REQUEUE_SECONDS + 30)
    assert [line for line in said.read_text().splitlines() if line.startswith("start")] == ["start 0", "start 1"]


def test_nothing_of_it_is_this_machines(slurm: PrivateSlurm) -> None:
    assert slurm.folder.parent == Path("/tmp")
    assert "SLURM_CONF" not in os.environ
    assert {process.name() for process in slurm.processes()} == {"munged", "slurmctld", "slurmd"}
