"""Metrics arrive where the recipe sends them, and the reward curve is a picture."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import httpx
import pytest

from rlhf.errors import ConfigError, UserError
from rlhf.runs import loggers as module
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.loggers import EpisodeRow, LoggedRun, Logger, Loggers, make_loggers
from rlhf.runs.plot import plot_rewards
from rlhf.runs.prometheus import Gauges, scraped
from tests.pace import scaled

ROW = EpisodeRow("t", "1+1", "2", 1.0, "terminated", 3)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


class Kept:
    """A logger of the user's that keeps what it gets."""

    made: ClassVar[list[Kept]] = []

    def __init__(self, run: LoggedRun) -> None:
        self.run, self.calls = run, list[tuple[object, ...]]()
        self.made.append(self)

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self.calls.append((update, dict(metrics)))

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None:
        self.calls.append((update, *episodes))

    def close(self) -> None:
        self.calls.append(("closed",))


class Broken(Kept):
    """A disk that is full, or a network that is down, from the second update on."""

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        super().log(update, metrics)
        if update > 1:
            raise OSError(28, "No space left on device")


class Refused(Kept):
    """A server that is down when the run begins."""

    tries = 0

    def __init__(self, run: LoggedRun) -> None:
        Refused.tries += 1
        if Refused.tries < 3:
            raise ConnectionError("refused")
        super().__init__(run)


class Waits(Kept):
    """A server that does not answer."""

    answers = threading.Event()

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self.answers.wait(scaled(60))


def logged(folder: RunFolder, *names: str) -> tuple[Loggers, list[str]]:
    """The loggers after two updates, and what was told."""
    told: list[str] = []
    Kept.made.clear()
    loggers = make_loggers(names, LoggedRun(folder, "run", {"seed": 3}), told.append)
    loggers.log(1, {"reward/mean": 0.5, "loss": math.nan})
    loggers.log_episodes(1, (ROW,))
    loggers.log(2, {"reward/mean": 0.75})
    loggers.close()
    return loggers, told


def test_every_update_is_a_line_and_what_is_no_number_is_null(folder: RunFolder):
    logged(folder)
    first, second = read_jsonl(folder.metrics)
    assert (first["update"], first["reward/mean"], first["loss"]) == (1, 0.5, None)
    assert (second["update"], second["reward/mean"]) == (2, 0.75)
    assert list(folder.tensorboard.iterdir()) == []


def test_tensorboard_reads_back_what_was_logged(folder: RunFolder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged(folder, "tensorboard")
    events = EventAccumulator(str(folder.tensorboard))
    events.Reload()
    assert events.Tags()["scalars"] == ["reward/mean"]
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.5), (2, 0.75)]
    resumed = make_loggers(["tensorboard"], LoggedRun(folder, "run", {}), print)
    resumed.log(2, {"reward/mean": 0.25})
    resumed.log(3, {"reward/mean": 1.0})
    resumed.close()
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.5), (2, 0.25), (3, 1.0)]


def test_a_logger_of_your_own_gets_finite_numbers_episodes_and_the_recipe(folder: RunFolder):
    assert logged(folder, f"{__name__}:Kept")[1] == []
    (kept,) = Kept.made
    assert kept.calls == [(1, {"reward/mean": 0.5}), (1, ROW), (2, {"reward/mean": 0.75}), ("closed",)]
    assert (kept.run.name, kept.run.recipe, kept.run.known_id("mine")) == ("run", {"seed": 3}, None)
    kept.run.keep_id("mine", "a1")
    assert LoggedRun(folder, "run", {}).known_id("mine") == "a1"


@pytest.mark.parametrize(
    ("name", "words", "calls"),
    [
        ("Broken", "OSError: [Errno 28] No space left on device", 4),
        ("Refused", "ConnectionError: refused", 3),  # made at the third try, after the first metrics
    ],
)
def test_a_logger_that_fails_is_told_once_and_nothing_else_is_lost(
    folder: RunFolder, name: str, words: str, calls: int
):
    _, told = logged(folder, f"{__name__}:{name}", f"{__name__}:Kept")
    (line,) = told
    assert line.startswith(f"logger {__name__}:{name} failed: {words}")
    assert {type(one).__name__: len(one.calls) for one in Kept.made} == {name: calls, "Kept": 4}
    assert [row["update"] for row in read_jsonl(folder.metrics)] == [1, 2]


def test_a_logger_that_does_not_answer_is_left_behind(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CLOSE_SECONDS", 0.1)
    _, told = logged(folder, f"{__name__}:Waits")
    Waits.answers.set()
    assert told == [f"logger {__name__}:Waits did not finish: up to 3 calls are not logged"]
    assert len(list(read_jsonl(folder.metrics))) == 2


async def test_prometheus_gets_the_newest_number_of_every_metric():
    gauges = Gauges("run")
    async with (
        scraped(gauges, host="127.0.0.1", port=0, token="secret") as url,
        httpx.AsyncClient(trust_env=False, headers={"Authorization": "Bearer secret"}) as client,
    ):
        gauges.log(1, {"reward/mean": 0.5, "eval/a/pass@8": 0.25, "eval/a_pass@8": 1.0, "loss": 2.0})
        gauges.log(2, {"reward/mean": 0.75, "loss": math.nan})
        text = (await client.get(f"{url}/metrics")).text
        assert (await httpx.AsyncClient(trust_env=False).get(f"{url}/metrics")).status_code == 401
        with pytest.raises(UserError, match="cannot listen on"):
            async with scraped(gauges, host="127.0.0.1", port=int(url.rpartition(":")[2]), token=None):
                pass
    assert "# HELP rlhf_reward_mean mean reward of the trained episodes" in text
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        'rlhf_reward_mean{metric="reward/mean",run="run"} 0.75',
        'rlhf_eval_a_pass_at_8{metric="eval/a/pass@8",run="run"} 0.25',
        'rlhf_eval_a_pass_at_8{metric="eval/a_pass@8",run="run"} 1.0',
        'rlhf_update{metric="update",run="run"} 2.0',
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, f"pip install {library.module}") for name, library in module.LIBRARIES.items()),
        ("absent_module:Mine", "absent_module:Mine, which cannot be imported"),
    ],
)
def test_a_logger_that_is_not_installed_is_the_users_to_install(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, name: str, told: str
):
    monkeypatch.setattr(module, "find_spec", lambda module: None)
    with pytest.raises(ConfigError, match=told):
        make_loggers([name], LoggedRun(folder, "run", {}), print)


def test_what_has_no_methods_of_a_logger_is_told(folder: RunFolder):
    (line,) = logged(folder, "builtins:str")[1]
    assert "run.loggers: builtins:str is a str without the methods log and close" in line
    assert not isinstance(object(), Logger)


def test_logging_brings_no_torch_along(folder: RunFolder):
    program = (
        "import sys; from pathlib import Path; from rlhf.runs.folder import RunFolder\n"
        "from rlhf.runs.loggers import LoggedRun, make_loggers\n"
        "make_loggers(['tensorboard'], LoggedRun(RunFolder(Path(sys.argv[1])), 'run', {}), print).close()\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'tensorflow', 'ray', 'vllm')))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder.path)], timeout=scaled(60)).returncode == 0


@pytest.mark.parametrize(("training", "evaluations"), [([(1, 0.2), (2, 0.4)], [(0, 0.1), (2, 0.5)]), ([], [])])
def test_the_reward_curve_is_a_picture_however_short_the_run(tmp_path: Path, training: list, evaluations: list):
    plot_rewards(tmp_path / "reward.png", training, evaluations, "a run")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
