"""How jobs end before they are done: cancelled, or with a node that died. Nothing of them is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.jobs import LONG, OVER_BOTH_NODES, Job, submit
from tests.slurm.private import PrivateSlurm
from tests.slurm.processes import by_name, kill_all

pytestmark = pytest.mark.timeout(500)


@pytest.fixture
def job(slurm: PrivateSlurm, cache: Path, tmp_path: Path) -> Iterator[Job]:
    """A job in the middle of training."""
    job = submit(slurm, tmp_path / "run", cache, *OVER_BOTH_NODES, *LONG)
    job.until_trained(3)
    yield job
    slurm.run("scancel", job.number)


def test_scancel_leaves_nothing_within_ten_seconds(job: Job) -> None:
    names = dict(by_name(job.processes()))
    assert any("raylet" in name for name in names), names
    job.slurm.run("scancel", job.number)
    job.assert_nothing_left()
    assert job.until_ended(30) == "CANCELLED"
    assert "asked to end" in job.output
    assert job.summary["updates"] >= 3
    assert job.summary["outcome"] == "stopped", "not the death of a worker, which heard of the end first"


def test_a_node_that_dies_is_named_and_nothing_is_left(job: Job) -> None:
    kill_all(job.processes("n2"))
    assert job.until_ended(60) == "FAILED"
    job.assert_nothing_left()
    assert re.search(r"^srun: error: n2: task 0: Killed$", job.output, re.MULTILINE), job.output
    assert "rlhf slurm: first to end: another node" in job.output
    assert re.match(r"(learner|engine)-\d died: ", job.summary["outcome"]), "a worker of that node, which Ray chose"
