"""How a run ends when its disk does not take more: in one line, with its summary where there is room for one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf.controller import rl as training
from rlhf.controller import run_end
from rlhf.controller.build import stop_engines
from rlhf.controller.checkpoints import saying_what_is_intact
from rlhf.controller.episode_log import EpisodeLog
from rlhf.controller.preemption import Leaving
from rlhf.errors import DiskFailed, RlhfError, RunTaken, SaveFailed, WorkerDied
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.records import EpisodeOutcome
from rlhf.runs.summary import STOPPED, Summary
from rlhf.types import Failed, Task, Ticket
from tests.runs.sitting import SavingLearner
from tests.runs.test_power_cut import Sat, sit


def full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "plot_rewards", lambda *arguments: None)


def ended(run: Path, sat: Sat) -> RlhfError:
    """What ends the run, in one line."""
    with pytest.raises(RlhfError) as failed, saying_what_is_intact(RunFolder(run)):
        sit(run, sat, resume=False)
    assert "\n" not in str(failed.value)
    return failed.value


def test_a_save_for_which_there_is_no_room_says_which_checkpoint_is_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SavingLearner.write

    async def fills(self: SavingLearner, path: Path, version: int) -> Any:
        written = await write(self, path, version)
        return written if version < 4 else full()

    monkeypatch.setattr(SavingLearner, "write", fills)
    failure = ended(tmp_path / "run", Sat())
    assert isinstance(failure, SaveFailed)
    whole = tmp_path / "run" / "checkpoints" / "version-000002"
    assert str(failure).startswith("version 4 cannot be saved: ")
    assert str(failure).endswith(f"No space left on device); {whole} is intact, and --resume continues from it")
    assert [path.name for path in whole.parent.iterdir()] == ["version-000002"], "what was half written makes room"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["outcome"] == str(failure)
    assert summary["updates"] >= 4, "updates go on while it is written"


def test_records_for_which_there_is_no_room_end_the_run_and_leave_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, room = JsonlWriter.flush, [3]

    def small_disk(self: JsonlWriter) -> None:
        room[0] -= bool(self._lines)
        if room[0] < 0 and self._lines:
            monkeypatch.setattr(self, "_file", HalfFull(self._file))
        flush(self)

    monkeypatch.setattr(JsonlWriter, "flush", small_disk)
    failure = ended(tmp_path / "run", Sat())
    assert isinstance(failure, DiskFailed)
    assert "cannot be written (No space left on device)" in str(failure)
    assert str(failure).endswith("is intact, and --resume continues from it")
    for name in ("metrics.jsonl", "spans.jsonl"):
        text = (tmp_path / "run" / name).read_text()
        assert text == "" or text.endswith("}\n")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] in str(failure)


class HalfFull:
    """Takes ten bytes more, and then none."""

    def __init__(self, file: Any) -> None:
        self._file, self._taken = file, False

    def write(self, data: memoryview) -> int:
        if self._taken:
            full()
        self._taken = True
        return int(self._file.write(data[:10]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_summary_that_cannot_be_written_does_not_hide_what_ended_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "write_summary", full)
    monkeypatch.setattr(SavingLearner, "update", full)
    with pytest.raises(OSError, match="No space"):
        sit(tmp_path / "run", Sat(), resume=False)
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_run_that_went_well_but_for_its_summary_did_not_go_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFolder, "write_summary", full)
    failure = ended(tmp_path / "run", Sat())
    assert "version-000006 is intact" in str(failure)


def test_the_summary_is_written_before_the_records_of_what_was_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf.controller.episode_log.EpisodeLog.close", full)
    ended(tmp_path / "run", Sat())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    accounts = summary["sample_counts"]
    assert accounts["in_flight"] == 2 * summary["group_counts"]["in_flight"]
    assert accounts["admitted"] == sum(count for outcome, count in accounts.items() if outcome != "admitted")


def test_a_group_that_failed_or_was_in_flight_leaves_records(tmp_path: Path) -> None:
    log = EpisodeLog(RunFolder.keep(tmp_path), samples=2)
    failed, in_flight = (Ticket(ordinal=ordinal, version=0) for ordinal in range(2))
    for ticket in (failed, in_flight):
        log.admitted(ticket, Task(id="t", messages=()))
    log.settled(failed, Failed(kind="timeout"), kept=False)
    log.close()
    outcomes = [(record.ordinal, record.outcome) for record in read_episodes(tmp_path / "episodes")]
    assert outcomes == [(0, EpisodeOutcome.FAILED)] * 2 + [(1, EpisodeOutcome.IN_FLIGHT)] * 2


def test_a_run_that_lost_its_folder_writes_nothing_more_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, seen = SavingLearner.write, {}

    async def taken(self: SavingLearner, path: Path, version: int) -> Any:
        written = await write(self, path, version)
        if version == 4:
            (tmp_path / "run" / "owner" / "000002").write_text("{}")
            seen.update(files(tmp_path / "run"))
        return written

    monkeypatch.setattr(SavingLearner, "write", taken)
    with pytest.raises(RunTaken):
        sit(tmp_path / "run", Sat(), resume=False)
    after = files(tmp_path / "run")
    assert {name: content for name, content in after.items() if "writing-000004" not in name} == {
        name: content for name, content in seen.items() if "writing-000004" not in name
    }


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_errors_than_a_disk_s_are_not_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ConnectionRefusedError), saying_what_is_intact(RunFolder.keep(tmp_path)):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def test_every_step_of_an_end_is_taken_whatever_became_of_those_before_it() -> None:
    taken: list[int] = []
    steps: list[Callable[[], object]] = [full, lambda: taken.append(1), full, lambda: taken.append(2)]
    with pytest.raises(OSError, match="No space"):
        run_end.each(*steps)
    assert taken == [1, 2]


async def test_an_end_that_fails_does_not_hide_what_failed_before_it() -> None:
    async def run() -> str:
        raise SaveFailed("what ended it")

    def close(outcome: str) -> Summary:
        raise DiskFailed("what followed")

    with pytest.raises(SaveFailed, match="what ended it"):
        await run_end.closed(run(), close, Leaving())


@pytest.mark.parametrize(("told", "outcome"), [(True, STOPPED), (False, "learner-1 died: its node n2 is lost")])
async def test_a_death_is_recorded_unless_the_end_of_all_is_told_soon_after_it(
    told: bool, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_end, "END_OF_ALL_SECONDS", 60.0 if told else 0.01)
    leaving, recorded = Leaving(), []

    async def run() -> str:
        raise WorkerDied("learner-1", "its node n2 is lost")

    ending = asyncio.create_task(run_end.closed(run(), recorded.append, leaving))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    if told:
        assert not recorded
        leaving.stopped = True
        ending.cancel()
    with pytest.raises(asyncio.CancelledError if told else WorkerDied):
        await ending
    assert recorded == [outcome]


async def test_engines_that_hang_are_stopped_at_once_and_not_in_turns() -> None:
    stopping: list[int] = []

    class Slow:
        async def stop(self) -> None:
            stopping.append(1)
            while len(stopping) < 3:
                await asyncio.sleep(0)

    await asyncio.wait_for(stop_engines([Slow(), Slow(), Slow()]), 5)  # type: ignore[list-item]
