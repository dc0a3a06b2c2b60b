"""Two jobs at once on one machine: a cluster, a secret and temporary files each, and neither joins the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.slurm.jobs import LONG, UNHURRIED, Job, submit
from tests.slurm.private import PrivateSlurm
from tests.slurm.processes import by_name

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def jobs(slurm: PrivateSlurm, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Job]:
    """Both in the middle of training, with time enough left to look at them."""
    folder = tmp_path_factory.mktemp("two")
    sizes = (*LONG, *UNHURRIED, "trainer.updates=30")
    first, second = (submit(slurm, folder / name, cache, *sizes, nodes=1) for name in ("first", "second"))
    first.until_trained(1)
    second.until_trained(1)
    assert first.state == "RUNNING", "they were to run at the same time"
    return first, second


def of_its_processes(job: Job, variable: str) -> set[str]:
    """The values that the variable has in the processes of Ray, which are told everything."""
    of_ray = [process for name, process in by_name(job.processes()) if name in ("raylet", "gcs_server")]
    return {process.environ().get(variable, "") for process in of_ray}


def rendezvous(job: Job) -> Path:
    [file] = job.folder.glob("logs/rendezvous-*.json")
    return file


def test_each_has_a_cluster_of_its_own(jobs: tuple[Job, Job]) -> None:
    heads = [json.loads(rendezvous(job).read_text()) for job in jobs]
    assert len({head["address"] for head in heads}) == len({head["run"] for head in heads}) == 2
    for variable in ("RLHF_RUN_ID", "RAY_AUTH_TOKEN"):
        [one], [other] = (of_its_processes(job, variable) for job in jobs)
        assert "" not in (one, other)
        assert one != other


def test_both_finish_and_leave_nothing(jobs: tuple[Job, Job]) -> None:
    for job in jobs:
        assert job.until_ended() == "COMPLETED", job.words()
        assert job.summary["outcome"] == "finished"
    for job in jobs:
        job.assert_nothing_left()
