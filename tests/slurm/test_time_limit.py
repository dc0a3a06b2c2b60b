"""A job that its time limit interrupts saves, queues itself again and finishes, with every prompt trained exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.running import SMALL
from tests.slurm.jobs import OVER_BOTH_NODES, submit, trained_ordinals
from tests.slurm.private import PrivateSlurm

UPDATES, GROUPS, SAMPLES = 160, 8, 4


@pytest.mark.timeout(900)
def test_every_prompt_is_trained_once_over_both_times(slurm: PrivateSlurm, cache: Path, tmp_path: Path) -> None:
    size = (f"trainer.updates={UPDATES}", "data.eval=null", *SMALL)
    job = submit(slurm, tmp_path / "run", cache, *OVER_BOTH_NODES, *size, "--signal", "60", time="2")
    assert job.until_ended(700) == "COMPLETED", job.words()
    job.assert_nothing_left()
    assert int(job.shown("Restarts")) >= 1
    episodes, accounts = job.episodes, job.summary["sample_accounts"]
    assert trained_ordinals(episodes) == list(range(UPDATES * GROUPS))
    assert len({(one.ordinal, one.sample) for one in episodes}) == len(episodes) == UPDATES * GROUPS * SAMPLES
    assert [one.update for one in episodes] == sorted(one.update for one in episodes)
    assert accounts["admitted"] == accounts["trained"] == len(episodes)
    assert (job.summary["outcome"], job.summary["updates"]) == ("finished", UPDATES)
