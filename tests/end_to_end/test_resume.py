"""A run that stopped and goes on is the run that never stopped: bit for bit, and to the last sample."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.end_to_end.running import QUICKSTART, ROOT, RUN_SECONDS, SMALL, Run, train, warm_environment
from tests.warm import client as warm

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
OPTIONS = (
    *SMALL, "trainer.updates=10", "trainer.save_every=5", "trainer.eval_every=5", "trainer.max_staleness=0",
    "trainer.weight_sync.verify_at_start=false",
)  # fmt: skip
PAIRS = (
    "model.warmup=null", "trainer.updates=6", "trainer.save_every=3", "trainer.eval_every=2", "cluster.kind=local",
    "trainer.groups_per_update=8", "data.eval.arguments.rows=32",
)  # fmt: skip
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
    [
        (1, 1),
        (2, 3),
        pytest.param(1, 3, marks=pytest.mark.slow),
        pytest.param(2, 1, marks=pytest.mark.slow),
    ],
)
def test_ten_updates_are_five_and_a_resume_and_five(
    request: pytest.FixtureRequest, tmp_path: Path, cache: Path, ranks: int, stage: int
) -> None:
    plain = (ranks, stage) == (1, 1)
    run = request.getfixturevalue("whole") if plain else train(tmp_path / "run", cache, *OPTIONS, *plan(ranks, stage))
    resumed = train(died_at_its_end(run, tmp_path / "died"), cache, *OPTIONS, *plan(ranks, stage), "--resume")
    told = (resumed.folder / "logs" / "controller.log").read_text()
    assert "version-000010 is not a complete checkpoint: it has no manifest.json" in told
    assert "resuming from version-000005: 5 of 10 updates are behind it" in told
    assert same_to_the_bit(resumed, run)
    after = [one for one in resumed.episodes if one.update == 6]
    assert {version for one in after for version in one.versions or () if version is not None} == {5}


def test_a_run_that_is_asked_to_saves_and_leaves_and_goes_on(whole: Run, tmp_path: Path, cache: Path) -> None:
    left = leave_after(3, tmp_path / "run", cache, *OPTIONS, *plan(1, 1))
    summary = left.summary
    assert summary["outcome"] == "saved: SIGUSR1"
    assert 3 <= summary["updates"] < 10
    assert "the same command with --resume goes on" in left.process.stdout
    resumed = train(left.folder, cache, *OPTIONS, *plan(1, 1), "--resume")
    assert same_to_the_bit(resumed, whole)
    assert resumed.summary["group_counts"] == whole.summary["group_counts"]
    assert resumed.summary["evaluations"] == whole.summary["evaluations"]


def test_before_any_checkpoint_a_resume_starts_anew_and_sets_the_rest_aside(
    whole: Run, tmp_path: Path, cache: Path
) -> None:
    started = Path(shutil.copytree(whole.folder, tmp_path / "run"))
    shutil.rmtree(started / "checkpoints")
    again = train(started, cache, *OPTIONS, *plan(1, 1), "trainer.updates=1", "--resume")
    assert "has no checkpoint to resume from: starting from the beginning" in again.process.stdout
    assert (started / "aside.1" / "episodes.jsonl").read_text() == (whole.folder / "episodes.jsonl").read_text()
    assert {one.ordinal for one in again.episodes if one.outcome == "trained"} == set(range(8))


def test_other_data_is_refused_and_other_settings_are_told(whole: Run, tmp_path: Path, cache: Path) -> None:
    started = died_at_its_end(whole, tmp_path / "run")
    refused = train(started, cache, *OPTIONS, *plan(1, 1), "seed=7", "--resume", expect=2)
    assert f"seed was 0 in {started} and is 7: a resumed run keeps its data" in refused.process.stderr
    told = train(started, cache, *OPTIONS, *plan(1, 1), "trainer.updates=6", "--resume")
    assert "changed since: trainer.updates 10 → 6" in told.process.stdout


def test_a_run_on_pairs_goes_on_too(tmp_path: Path, cache: Path) -> None:
    recipe = ROOT / "recipes" / "dpo.yaml"
    run = train(tmp_path / "run", cache, *PAIRS, recipe=recipe)
    died = died_at_its_end(run, tmp_path / "died")
    was, other = files_of(died), f"trainer.reference_path={run.model}"
    refused = train(died, cache, *PAIRS, other, "--resume", recipe=recipe, expect=2)
    assert f"trainer.reference_path: not what {died} began with" in refused.process.stderr
    assert files_of(died) == was, "a start that is refused changes nothing"
    resumed = train(died, cache, *PAIRS, "--resume", recipe=recipe)
    assert "resuming from version-000003: 3 of 6 updates are behind it" in resumed.process.stdout
    assert list(map(timeless, resumed.metrics)) == list(map(timeless, run.metrics))
    assert len(run.metrics) == 6
    assert resumed.summary["evaluations"] == run.summary["evaluations"]
    assert same_states(resumed, run)


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
    """A run that is sent SIGUSR1 when so many updates are behind it."""
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
    assert [timeless(asdict(record)) for record in one.episodes] == [
        timeless(asdict(record)) for record in other.episodes
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
    return {name: value for name, value in values.items() if name not in clocks and not name.startswith("seconds/")}


def evaluations(run: Run) -> list[dict[str, Any]]:
    return [timeless(json.loads(line)) for line in (run.folder / "evaluations.jsonl").read_text().splitlines()]


def same_state(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(same_state, one, other))
    return type(one) is type(other) and (one == other or not isinstance(one, int | float | str | bool | None))
