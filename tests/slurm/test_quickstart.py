"""The quickstart as a job on two nodes: engines on one, learner ranks on both, and the reward of any other run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.end_to_end.running import largest_difference
from tests.slurm.configuration import NODES
from tests.slurm.jobs import OVER_BOTH_NODES, Job, submit
from tests.slurm.private import PrivateSlurm

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def job(slurm: PrivateSlurm, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    job = submit(slurm, tmp_path_factory.mktemp("quickstart") / "run", cache, *OVER_BOTH_NODES)
    assert job.until_ended() == "COMPLETED", job.words()
    return job


def test_it_leaves_no_process_and_no_temporary_file(job: Job) -> None:
    job.assert_nothing_left()


def test_the_held_out_reward_rises_from_a_minority_to_nearly_all(job: Job) -> None:
    summary = job.summary
    assert (summary["outcome"], summary["eval_problems"]) == ("finished", 256)
    assert 0.1 <= summary["eval_reward_start"] <= 0.5
    assert summary["eval_reward_end"] >= 0.9


def test_the_plan_has_the_engine_on_one_node_and_a_rank_on_each(job: Job) -> None:
    told = (job.folder / "logs" / "controller.log").read_text()
    node_of = dict(re.findall(r"^((?:engine|learner)-\d) +(\S+)", told, re.MULTILINE))
    assert set(node_of) == {"engine-0", "learner-0", "learner-1"}, told
    assert {node_of["learner-0"], node_of["learner-1"]} == set(NODES)


def test_the_nodes_logs_are_in_the_run_folder(job: Job) -> None:
    told = "".join(log.read_text() for log in (job.folder / "logs").glob("node-*.log"))
    for node in NODES:
        assert re.search(rf"^\S+Z {node} (is the head|joined)", told, re.MULTILINE), told


def test_its_books_are_as_those_of_any_run(job: Job) -> None:
    accounts, episodes = job.summary["sample_counts"], job.episodes
    assert len(episodes) == accounts.pop("admitted") == sum(accounts.values())
    assert largest_difference(episodes) <= 1e-4
