"""When a run leaves before its end."""

from __future__ import annotations

import pytest

from rlhf.controller.preemption import SPARE_SECONDS, Leaving


def test_without_a_job_and_unasked_a_run_stays() -> None:
    assert Leaving.of_job({}).reason(1e9) is None


@pytest.mark.parametrize(("left", "expected"), [(100, None), (99, "the job ends in 99 s"), (-5, "the job ends in 0 s")])
def test_it_leaves_when_what_comes_next_takes_longer_than_its_job_has(left: float, expected: str | None) -> None:
    leaving = Leaving(ends_at=1000.0, wall=lambda: 1000.0 - left)
    assert leaving.reason(100 - SPARE_SECONDS) == expected


def test_the_end_of_a_job_is_read_from_its_environment() -> None:
    assert Leaving.of_job({"SLURM_JOB_END_TIME": "1000"}, lambda: 999.0).reason(0) == "the job ends in 1 s"
    assert Leaving.of_job({"SLURM_JOB_END_TIME": "Unknown"}).reason(0) is None


def test_the_end_of_a_job_that_has_passed_is_that_of_another() -> None:
    assert Leaving.of_job({"SLURM_JOB_END_TIME": "1000"}, lambda: 1000.0).reason(1e9) is None


def test_the_first_who_asks_is_named() -> None:
    leaving = Leaving()
    leaving.ask("SIGUSR1")
    leaving.ask("another")
    assert leaving.reason(0) == "SIGUSR1"
