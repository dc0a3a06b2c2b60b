"""Metrics arrive where the recipe sends them, and the reward curve is a picture."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf.errors import UserError
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.loggers import make_loggers
from rlhf.runs.plot import plot_rewards
from tests.pace import scaled


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run")


def test_every_update_is_a_line_and_what_is_no_number_is_null(folder: RunFolder):
    loggers = make_loggers([], folder, "run", {})
    loggers.log(1, {"reward/mean": 0.5, "loss": math.nan})
    loggers.log(2, {"reward/mean": 0.75})
    loggers.close()
    first, second = read_jsonl(folder.metrics)
    assert (first["update"], first["reward/mean"], first["loss"]) == (1, 0.5, None)
    assert (second["update"], second["reward/mean"]) == (2, 0.75)
    assert list(folder.tensorboard.iterdir()) == []


def test_tensorboard_reads_back_what_was_logged(folder: RunFolder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    loggers = make_loggers(["tensorboard"], folder, "run", {})
    loggers.log(1, {"reward/mean": 0.5})
    loggers.log(2, {"reward/mean": 0.75})
    loggers.close()
    events = EventAccumulator(str(folder.tensorboard))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == [(1, 0.5), (2, 0.75)]


def test_a_logger_that_is_not_installed_is_the_users_to_install(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb"):
        make_loggers(["wandb"], folder, "run", {})


def test_logging_brings_no_torch_along(folder: RunFolder):
    program = (
        "import sys; from pathlib import Path; from rlhf.runs.folder import RunFolder\n"
        "from rlhf.runs.loggers import make_loggers\n"
        "make_loggers(['tensorboard'], RunFolder(Path(sys.argv[1])), 'run', {}).close()\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'tensorflow', 'ray', 'vllm')))"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder.path)], timeout=scaled(60)).returncode == 0


@pytest.mark.parametrize(
    ("training", "evaluations"),
    [
        ([(1, 0.2), (2, 0.4)], [(0, 0.1), (2, 0.5)]),
        ([], []),
    ],
)
def test_the_reward_curve_is_a_picture_however_short_the_run(tmp_path: Path, training: list, evaluations: list):
    plot_rewards(tmp_path / "reward.png", training, evaluations, "a run")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")
