"""A job that its time limit interrupts, and then a more urgent job: it saves each time, queues itself again and
finishes; every prompt is trained once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.slurm.jobs import (
    GOING_ON,
    LONG,
    OVER_BOTH_NODES,
    START_SECONDS,
    UNHURRIED,
    Job,
    assert_each_trained_once,
    submit,
)
from tests.slurm.private import PrivateSlurm
from tests.slurm.processes import until

UPDATES = 140
"""About two minutes of training, so that both interruptions come before the end."""
TYPED = ("--gpus-per-node", "tiny:1", "trainer.deepspeed.gpus_per_rank=0", "rollout.gpus_per_engine=0")
"""Nodes with GPUs, which this installation cannot use."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def job(slurm: PrivateSlurm, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Interrupted, preempted, and trained to its end."""
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    words = (*OVER_BOTH_NODES, *LONG, *UNHURRIED, f"trainer.updates={UPDATES}", "--signal", "60", *TYPED)
    job = submit(slurm, folder, cache, *words)
    job.until_trained(1)
    hours, minutes, _ = map(int, job.shown("RunTime").split(":"))
    # SLURM counts whole minutes, and signals the job up to 90 seconds before its end: here within half a minute.
    slurm.run("scontrol", "update", f"JobId={job.number}", f"TimeLimit={60 * hours + minutes + 2}")
    assert until(lambda: job.state not in GOING_ON or int(job.shown("Restarts")), START_SECONDS), job.words()
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")
    job.until_trained(len(job.metrics) + 3)
    slurm.run("sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
    assert job.until_ended() == "COMPLETED", job.words()
    return job


def test_it_was_interrupted_twice_and_left_nothing(job: Job) -> None:
    assert "rlhf slurm: preempted: the run saves after this update, if it can by 20" in job.output
    again = r"^rlhf slurm: the job is queued again, and continues from .*/version-0000"
    assert re.search(again, job.output, re.MULTILINE)
    assert job.shown("Restarts") == "2"
    job.assert_nothing_left()
    assert (job.summary["outcome"], job.summary["updates"]) == ("finished", UPDATES)


def test_every_prompt_was_trained_exactly_once_and_in_order(job: Job) -> None:
    assert_each_trained_once(job, UPDATES)


def test_nodes_offer_the_gpus_of_the_type_that_was_asked_for(job: Job) -> None:
    assert job.shown("TresPerNode") == "gres:gpu:tiny:1"
    told = "".join(log.read_text() for log in (job.folder / "logs").glob("node-*.log"))
    assert set(re.findall(r"(\d) GPUs", told)) == {"1"}, told
