"""A job that its time limit interrupts saves, queues itself again and finishes; every prompt is trained once."""

from __future__ import annotations

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
"""Two minutes. Of three, SLURM gives one for the end, and half a one to its own clock, which looks that often: it has
90 seconds to start in, on a busy machine too."""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def job(slurm: PrivateSlurm, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("limited") / "run"
    words = (*OVER_BOTH_NODES, *LONG, *UNHURRIED, f"trainer.updates={UPDATES}", "--signal", "60")
    job = submit(slurm, folder, cache, *words, time="3")
    assert until(lambda: job.state not in GOING_ON or int(job.shown("Restarts")), START_SECONDS), job.words()
    slurm.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=30")  # one interruption is enough
    assert job.until_ended() == "COMPLETED", job.words()
    return job


def test_it_was_interrupted_and_left_nothing(job: Job) -> None:
    assert job.shown("Restarts") == "1"
    job.assert_nothing_left()
    assert (job.summary["outcome"], job.summary["updates"]) == ("finished", UPDATES)


def test_every_prompt_was_trained_exactly_once_and_in_order(job: Job) -> None:
    assert_each_trained_once(job, UPDATES)
