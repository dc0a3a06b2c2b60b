"""After which failures a run is started again by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.cluster.supervisor import Ended
from rlhf.controller.attempt import Attempt, RestartRule
from rlhf.durable import synced
from rlhf.runs.folder import RunFolder
from rlhf.runs.restarts import Restart, read_restarts
from rlhf.trainer.checkpoint import write_checkpoint
from rlhf.types import Written

DIED = Ended(code=1, cause="learner-0 died", began=True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run")
    updated(made, 5)
    return made


def updated(folder: RunFolder, updates: int) -> None:
    folder.metrics.write_text("{}\n" * updates)


async def saved(folder: RunFolder, version: int) -> None:
    async def save(path: Path) -> dict[str, Written]:
        (path / "weights").write_text("weights")
        return synced(path, [path / "weights"])

    await write_checkpoint(folder.checkpoints, version=version, next_ordinal=0, outstanding=(), save=save)


def numbers(rule: RestartRule, times: int, told: list[str]) -> list[int | None]:
    made = [rule.after(DIED, told.append) for _ in range(times)]
    return [restart.number if restart else None for restart in made]


def test_three_restarts_that_come_no_further_are_the_last(folder: RunFolder) -> None:
    told: list[str] = []
    assert numbers(RestartRule(folder, 9), 4, told) == [1, 2, 3, None]
    assert told == ["not restarted: 3 consecutive restarts made no progress"]


async def test_a_new_update_and_a_new_checkpoint_are_further(folder: RunFolder) -> None:
    told: list[str] = []
    rule = RestartRule(folder, 9)
    assert numbers(rule, 3, told) == [1, 2, 3]
    updated(folder, 6)
    assert numbers(rule, 3, told) == [4, 5, 6]
    updated(folder, 4)
    await saved(folder, 4)
    assert numbers(rule, 4, told) == [7, 8, 9, None]
    assert told == ["not restarted: it restarted 9 times already (run.max_restarts)"]


def test_what_a_restart_cannot_mend_ends_the_run(folder: RunFolder) -> None:
    told: list[str] = []
    assert RestartRule(folder, 0).after(DIED, told.append) is None
    rule = RestartRule(folder, 3)
    assert rule.after(Ended(code=2, cause=None, began=True), told.append) is None
    assert not told


def test_a_run_that_was_never_its_folders_owner_or_made_no_update_is_not_started_again(folder: RunFolder) -> None:
    told: list[str] = []
    rule = RestartRule(folder, 3)
    assert rule.after(Ended(code=137, cause="killed", began=False), told.append) is None
    updated(folder, 0)
    assert rule.after(DIED, told.append) is None
    assert told == ["not restarted: it failed before its first update"]


def test_a_restart_is_recorded_where_it_goes_on(folder: RunFolder) -> None:
    restart = RestartRule(folder, 3).after(DIED, print)
    assert restart is not None
    sentence = Attempt(restart=restart).record(folder, 4)
    assert sentence == "restart 1 from update 4 of 5, because learner-0 died"
    folder.set_records_aside()
    assert [one.sentence for one in read_restarts(folder.restarts)] == [sentence], "an aside keeps what happened"
    assert Attempt().record(folder, 0) is None
    assert isinstance(restart, Restart)
