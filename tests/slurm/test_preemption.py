"""A more urgent job takes the nodes: the run saves in the time of grace, is queued again, and goes on where it was."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.slurm.jobs import LONG, OVER_BOTH_NODES, UNHURRIED, Job, assert_each_trained_once, submit
from tests.slurm.private import PrivateSlurm

UPDATES = 16

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def job(slurm: PrivateSlurm, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Preempted in the middle, and trained to its end."""
    folder = tmp_path_factory.mktemp("preempted") / "run"
    words = (*OVER_BOTH_NODES, *LONG, *UNHURRIED, f"trainer.updates={UPDATES}", "--gpus-per-node", "tiny:1")
    job = submit(slurm, folder, cache, *words)
    job.until_trained(3)
    slurm.run("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    assert job.until_ended() == "COMPLETED", job.words()
    return job


def test_it_saved_in_time_and_was_queued_again(job: Job) -> None:
    assert "rlhf slurm: preempted: the run saves after this update, if it can by 20" in job.output
    assert re.search(
        r"^rlhf slurm: the job is queued again, and goes on from .*/version-0000", job.output, re.MULTILINE
    )
    assert job.shown("Restarts") == "1"
    job.assert_nothing_left()
    assert (job.summary["outcome"], job.summary["updates"]) == ("finished", UPDATES)


def test_no_update_is_lost_and_none_is_trained_twice(job: Job) -> None:
    assert_each_trained_once(job, UPDATES)


def test_nodes_offer_the_gpus_of_the_type_that_was_asked_for(job: Job) -> None:
    assert job.shown("TresPerNode") == "gres:gpu:tiny:1"
    told = "".join(log.read_text() for log in (job.folder / "logs").glob("node-*.log"))
    assert re.findall(r"(\d) GPUs", told) == ["1"] * 4, told
