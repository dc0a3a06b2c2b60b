"""A run that stopped and goes on is the run that never stopped: bit for bit, and to the last sample."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rlhf.apps.cli.audit import run_audit
from rlhf.controller.resume import IDLE, TIMES
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import EpisodeRecord, as_row
from tests.end_to_end.running import (
    QUICKSTART,
    ROOT,
    RUN_SECONDS,
    SMALL,
    Run,
    command,
    environment,
    train,
    versions_of,
    warm_environment,
)
from tests.pace import scaled
from tests.warm import client as warm

SIGNALS = (signal.SIGKILL, signal.SIGSTOP)


def struck(
    folder: Path, cache: Path, *overrides: str, strikes: int, pause: tuple[float, float], seed: int
) -> tuple[Run, list[str]]:
    """Run the quickstart, and strike its engines `strikes` times, with a `pause` of between so many seconds before
    each. Return the run, and what was struck."""
    arguments = command("train", str(QUICKSTART), f"run.dir={folder}", f"model.cache_dir={cache}", *overrides)
    draw, struck = random.Random(seed), []
    deadline = time.monotonic() + scaled(240 + 30 * strikes)
    with (folder.parent / "output.txt").open("w+") as output:
        process = subprocess.Popen(arguments, cwd=ROOT, env=environment(), stdout=output, stderr=output)
        while process.poll() is None and time.monotonic() < deadline:
            if len(struck) < strikes and _updates(folder):
                time.sleep(draw.uniform(*pause))
                if engines := engines_of(folder):
                    name, how = draw.choice(sorted(engines)), draw.choice(SIGNALS)
                    engines[name].send_signal(how)
                    struck.append(f"{how.name} {name}")
            time.sleep(0.1)
        process.kill()
        output.seek(0)
        told = output.read()
    finished = subprocess.CompletedProcess(arguments, process.wait(), told, told)
    assert finished.returncode == 0, told[-5000:]
    return Run(folder, finished), struck


def _updates(folder: Path) -> int:
    """The updates that are reported."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def engines_of(folder: Path) -> dict[str, psutil.Process]:
    """The engines that run, by name: each writes to its own log."""
    found, logs = {}, folder / "logs"
    for process in psutil.process_iter():
        try:
            log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
            runs = process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
        except (OSError, psutil.NoSuchProcess):
            continue
        if log.parent == logs and log.name.startswith("engine") and runs:
            found[log.stem] = process
    return found


pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
OPTIONS = (
    *SMALL, "trainer.updates=10", "trainer.save_every=5", "trainer.eval_every=5", "trainer.max_staleness=0",
    "trainer.weight_sync.verify_at_start=false",
    "data.train.order=learnability", "data.train.arguments.rows=16", "trainer.replay.groups=3",
)  # fmt: skip
"""With choices and second uses, which are of a checkpoint too."""
CLOCKS = ("generate_seconds", "environment_seconds")
"""What differs between two runs that are the same."""


def plan(ranks: int, stage: int) -> tuple[str, ...]:
    kind = "local" if ranks == 1 else "ray"
    shares = ("trainer.deepspeed.cpus_per_rank=0.5", "rollout.cpus_per_engine=0.5")
    learner = (f"trainer.deepspeed.ranks={ranks}", f"trainer.deepspeed.zero_stage={stage}")
    return (*learner, *shares, f"cluster.kind={kind}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    return train(tmp_path_factory.mktemp("runs") / "whole", cache, *OPTIONS, *plan(1, 1))


@pytest.mark.parametrize(
    ("ranks", "stage"),
    [(1, 1), (2, 3), pytest.param(1, 3, marks=pytest.mark.slow), pytest.param(2, 1, marks=pytest.mark.slow)],
)
def test_ten_updates_are_five_and_a_resume_and_five(
    request: pytest.FixtureRequest, tmp_path: Path, cache: Path, ranks: int, stage: int
) -> None:
    plain = (ranks, stage) == (1, 1)
    run = request.getfixturevalue("whole") if plain else train(tmp_path / "run", cache, *OPTIONS, *plan(ranks, stage))
    died = died_at_its_end(run, tmp_path / "died")
    if plain:
        was = files_of(died)
        refused = train(died, cache, *OPTIONS, *plan(1, 1), "seed=7", "--resume", expect=2)
        assert f"seed was 0 in {died} and is 7: a resumed run keeps its data" in refused.process.stderr
        assert files_of(died) == was, "a start that is refused changes nothing"
    resumed = train(died, cache, *OPTIONS, *plan(ranks, stage), "--resume")
    told = (resumed.folder / "logs" / "controller.log").read_text()
    assert "version-000010 is not a complete checkpoint: it has no manifest.json" in told
    assert "resuming from version-000005: 5 of 10 updates are done" in told
    assert same_to_the_bit(resumed, run)
    after = [one for one in resumed.episodes if one.update == 6]
    assert {version for one in after for version in versions_of(one)} == {5}


@pytest.mark.parametrize(
    ("updates", "strikes", "pause"),
    [(10, 2, (0.2, 1.0)), pytest.param(300, 20, (0.5, 6.0), marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_a_run_whose_engines_are_killed_and_stopped_is_the_run_that_was_left_alone(
    whole: Run, tmp_path: Path, cache: Path, updates: int, strikes: int, pause: tuple[float, float]
) -> None:
    """Whichever engines sample, in this process or in their own."""
    options = (*OPTIONS, f"trainer.updates={updates}")
    alone = whole if updates == 10 else train(tmp_path / "alone", cache, *options, *plan(1, 1))
    engines = (*plan(1, 1), "cluster.kind=ray", "rollout.engines=2", "rollout.silence_timeout_seconds=5")
    run, hit = struck(tmp_path / "run", cache, *options, *engines, strikes=strikes, pause=pause, seed=updates)
    assert len(hit) == strikes, run.process.stdout[-3000:]
    assert " replaces engine-" in run.process.stdout
    assert run_audit(run.folder) == 0
    assert [sampled(one) for one in run.episodes] == [sampled(one) for one in alone.episodes]
    before, after = states(alone), states(run)
    trained = [name for name in before if name.startswith("state/")]
    assert trained
    assert all(same_state(before[name], after[name]) for name in trained)


def sampled(episode: EpisodeRecord) -> dict[str, Any]:
    return {name: value for name, value in timeless(as_row(episode)).items() if name != "engine"}


def test_a_run_that_is_asked_to_saves_and_leaves_and_goes_on(whole: Run, tmp_path: Path, cache: Path) -> None:
    left = leave_after(3, tmp_path / "run", cache, *OPTIONS, *plan(1, 1))
    summary = left.summary
    assert summary["outcome"] == "saved: SIGUSR1"
    assert 3 <= summary["updates"] < 10
    assert "to continue, run the same command with --resume" in left.process.stdout
    resumed = train(left.folder, cache, *OPTIONS, *plan(1, 1), "--resume")
    assert same_to_the_bit(resumed, whole)
    assert resumed.summary["group_counts"] == whole.summary["group_counts"]
    assert resumed.summary["evaluations"] == whole.summary["evaluations"]


def files_of(folder: Path) -> dict[str, bytes]:
    """Everything of a run but its logs and who owned it."""
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(("logs/", "owner/"))}


def died_at_its_end(run: Run, folder: Path) -> Path:
    """The run as it was when its last checkpoint was not whole yet."""
    shutil.copytree(run.folder, folder)
    (last_checkpoint(folder) / "manifest.json").unlink()
    return folder


def last_checkpoint(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("version-*"))


def leave_after(updates: int, folder: Path, cache: Path, *overrides: str) -> Run:
    """A run that is sent SIGUSR1 when so many updates are done."""
    words = ("-m", "rlhf", "train", QUICKSTART, f"run.dir={folder}", f"model.cache_dir={cache}", *overrides)
    output, metrics = folder.with_suffix(".txt"), folder / "metrics.jsonl"
    with output.open("w") as stream:
        process = warm.start(words, environment=warm_environment(), stdout=stream, stderr=stream)
    deadline = time.monotonic() + RUN_SECONDS
    while not (metrics.exists() and metrics.read_text().count("\n") >= updates):
        assert time.monotonic() < deadline
        assert process.poll() is None, output.read_text()
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(RUN_SECONDS) == 75, output.read_text()
    return Run(folder, subprocess.CompletedProcess(process.args, 75, output.read_text(), ""))


def same_to_the_bit(one: Run, other: Run) -> bool:
    """Weights, optimizer, generators, metrics, evaluations, and episodes with every token and log-prob."""
    assert [timeless(as_row(record)) for record in one.episodes] == [
        timeless(as_row(record)) for record in other.episodes
    ]
    assert evaluations(one) == evaluations(other)
    assert [timeless(line) for line in one.metrics] == [timeless(line) for line in other.metrics]
    assert same_states(one, other)
    return True


def same_states(one: Run, other: Run) -> bool:
    before, after = states(one), states(other)
    assert before.keys() == after.keys()
    assert len(before) >= 2
    assert all(same_state(before[name], after[name]) for name in before)
    return True


def states(run: Run) -> dict[str, Any]:
    """Every file of the last checkpoint that holds state: weights and moments, the schedule, the random generators."""
    folder = last_checkpoint(run.folder)
    reads: dict[str, Callable[[Path], Any]] = {
        "state/*.safetensors": load_file,
        "state/*.json": lambda file: json.loads(file.read_text()),
        "random-*.pt": lambda file: torch.load(file, weights_only=True),
    }
    found = {str(file.relative_to(folder)): read(file) for glob, read in reads.items() for file in folder.glob(glob)}
    assert any("exp_avg:" in name for name in found["state/rank-00000.safetensors"]), "moments are of the state"
    return found


def timeless(values: Mapping[str, Any]) -> dict[str, Any]:
    clocks = (*CLOCKS, "time")
    return {name: one for name, one in values.items() if name not in clocks and not name.startswith((TIMES, IDLE))}


def evaluations(run: Run) -> list[dict[str, Any]]:
    return [timeless(as_row(record)) for record in read_episodes(run.folder / "evaluations")]


def same_state(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(same_state, one, other))
    return type(one) is type(other) and (one == other or not isinstance(one, int | float | str | bool | None))
