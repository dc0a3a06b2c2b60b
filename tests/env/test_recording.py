"""A run against a live server, recorded; and the same run again, bit for bit, when the server is gone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf.cluster.local import LocalCluster
from rlhf.env.config import EnvironmentConfig
from rlhf.env.encoding import dumps
from rlhf.env.recording import RecordedEnvironments, ReplayedEnvironments
from rlhf.env.starting import started_environments
from rlhf.errors import EnvironmentFailed, RecordingError
from rlhf.http.recording import Recorder, Replay
from rlhf.rollout.timed_environment import TimedEnvironment
from rlhf.runs.records import as_row
from rlhf.types import Message, Observation, Task, ToolCall
from tests.env.fated import RETURN, met
from tests.env.looping import Books, run_to_the_end
from tests.env.serving import served
from tests.fakes import TASK
from tests.rollout.playing import ScriptedEnvironment, ScriptedEnvironments, says

UPDATES = 6
CALL = ToolCall(id="c", name="add", arguments={"a": 1})


async def run(config: EnvironmentConfig, folder: Path) -> Books:
    async with started_environments(config, LocalCluster(), alone=True) as environments:
        return await run_to_the_end(environments, folder, UPDATES)


def episodes(books: Books) -> list[dict[str, Any]]:
    """Return the records without their seconds, in order of training."""
    untimed = [replace(one, generate_seconds=None, environment_seconds=None) for one in books.records]
    return [as_row(record) for record in sorted(untimed, key=lambda one: (one.ordinal, one.sample))]


@pytest.mark.engine
async def test_a_run_that_was_recorded_repeats_without_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASSETTE_TOKEN", "not-to-be-written")
    file, log = {"path": str(tmp_path / "recording.jsonl")}, tmp_path / "log"
    log.touch()
    arguments = {"log": str(log), "fates": ["raise"], "rate": 0.02}
    with served("Fated", module="tests.env.fated:", arguments=arguments, token="not-to-be-written") as url:
        config: dict[str, Any] = {"urls": [url], "token_env": "CASSETTE_TOKEN", "start_timeout_seconds": 60}
        recording = EnvironmentConfig(**config, recording=file | {"mode": "record"})
        live = await run(recording, tmp_path / "live")
    live.check(UPDATES, RETURN)
    assert live.failures["environment_raised"] == met(log).total() > 0
    again = await run(EnvironmentConfig(**config, recording=file), tmp_path / "again")
    assert episodes(again) == episodes(live)
    assert again.groups == live.groups
    assert "not-to-be-written" not in (tmp_path / "recording.jsonl").read_text()
    with pytest.raises(RecordingError, match="exists already"):
        await run(recording, tmp_path / "over")


async def recorded(path: Path) -> None:
    """Two openings of one session: a step and a failure; another answer."""
    plays = iter(
        [
            [says("go"), says("one", reward=0.5, info={"x": [1]}), EnvironmentFailed("scripted", "lost", "gone")],
            [says("go again", truncated=True)],
        ]
    )
    recorder = Recorder(path, dumps)
    scripted = ScriptedEnvironments(lambda session: ScriptedEnvironment(*next(plays)))
    recording = RecordedEnvironments(scripted, recorder)
    first = await recording.open("s")
    await first.reset(TASK, seed=1)
    await first.step(Message(role="assistant", content="a", tool_calls=(CALL,)))
    with pytest.raises(EnvironmentFailed):
        await first.step(Message(role="assistant", content="b"))
    await first.close()
    second = await recording.open("s")
    await second.reset(TASK, seed=1)
    recorder.close()


def replayed(path: Path) -> ReplayedEnvironments:
    return ReplayedEnvironments(Replay(path, dumps))


async def test_every_opening_of_a_session_answers_what_it_did_failures_too(tmp_path: Path) -> None:
    await recorded(tmp_path / "c")
    recording = replayed(tmp_path / "c")
    assert recording.spec == ScriptedEnvironments.spec
    first, second = await recording.open("s"), await recording.open("s")
    assert await second.reset(TASK, seed=1) == says("go again", truncated=True)
    assert await first.reset(TASK, seed=1) == says("go")
    one = await first.step(Message(role="assistant", content="a", tool_calls=(CALL,)))
    assert one == says("one", reward=0.5, info={"x": [1]})
    with pytest.raises(EnvironmentFailed, match="environment scripted: lost: gone"):
        await first.step(Message(role="assistant", content="b"))


class Silent(ScriptedEnvironment):
    """Never answers a step."""

    async def step(self, action: Message) -> Observation:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def silent_episode(path: Path, seconds: float) -> Observation | None:
    """One that is asked something, has a deadline, and is closed however it ends."""
    scripted = ScriptedEnvironments(lambda session: Silent(says("go")))
    recording = RecordedEnvironments(scripted, Recorder(path, dumps))
    environment = await recording.open("s")
    try:
        seat = TimedEnvironment(environment, "silent", seconds)
        await seat.reset(TASK, seed=1)
        return await seat.step(Message(role="assistant", content="a"))
    finally:
        await environment.close()


async def test_an_episode_that_its_deadline_cut_off_is_cut_off_again_without_waiting(tmp_path: Path) -> None:
    assert await silent_episode(tmp_path / "c", seconds=0.1) is None
    again = TimedEnvironment(await replayed(tmp_path / "c").open("s"), "silent", 3600)
    await again.reset(TASK, seed=1)
    assert await again.step(Message(role="assistant", content="a")) is None


async def test_an_episode_that_is_cancelled_with_the_run_has_not_failed(tmp_path: Path) -> None:
    playing = asyncio.create_task(silent_episode(tmp_path / "c", seconds=60))
    async with asyncio.timeout(5):
        while not (tmp_path / "c").exists() or '"reset"' not in (tmp_path / "c").read_text():
            await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    lines = [json.loads(line) for line in (tmp_path / "c").read_text().splitlines()]
    assert [line["request"]["method"] for line in lines] == ["spec", "open", "reset"]


async def test_what_was_not_recorded_is_an_error_and_not_an_answer(tmp_path: Path) -> None:
    await recorded(tmp_path / "c")
    recording = replayed(tmp_path / "c")
    first = await recording.open("s")
    with pytest.raises(RecordingError, match=r"no answer left to .*reset.*record again"):
        await first.reset(TASK, seed=2)
    with pytest.raises(RecordingError, match=r"no answer left to .*reset"):
        await first.reset(Task(id="other", messages=()), seed=1)
    await first.reset(TASK, seed=1)
    with pytest.raises(RecordingError, match=r"no answer left to .*step"):
        await first.step(Message(role="assistant", content="a"))
    with pytest.raises(RecordingError, match=r"no answer left to .*open"):
        await recording.open("t")


@pytest.mark.parametrize("line", ['{"request": {"method": "spec"}, "answer": {}}', '{"request": 1, "answer": 1}'])
def test_a_recording_of_something_else_is_an_error(line: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(line)
    with pytest.raises(RecordingError, match="record"):
        replayed(tmp_path / "c")
