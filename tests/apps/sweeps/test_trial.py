"""A trial reports what its run folder holds, and starts a process for nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining

from rlhf.apps.sweeps.order import ReportOrder
from rlhf.apps.sweeps.search import AxisByAxis, SeededPopulation
from rlhf.apps.sweeps.speed import SPEED, fits, speed_axes
from rlhf.apps.sweeps.trial import RunTrial, copy_run, trainable
from rlhf.errors import TrialFailed
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.machines import Machine, machine_of
from rlhf.runs.stored_run import read_metrics
from tests.end_to_end.running import QUICKSTART
from tests.recipe.planning.gpu_recipes import recipe_file
from tests.runs.made_run import made_run

pytestmark = pytest.mark.waits
RATE = {"trainer.optimizer.learning_rate": 1e-3}
ROWS = [{"reward/mean": 0.1}, {"reward/mean": 0.3, "eval/reward": 0.2}, {"reward/mean": 0.5}, {"reward/mean": 0.4}]


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: RunTrial) -> None:
        raise TrialFailed("a process was started")

    monkeypatch.setattr(RunTrial, "_start", refused)


def trial(folder: Path, record: Mapping[str, Any], outcome: str | None, metric: str | None = None) -> RunTrial:
    """A trial whose run is there."""
    folder.mkdir(exist_ok=True)
    made_run(folder / "default", ROWS, outcome and {"outcome": outcome})
    (folder / "default.json").write_text(json.dumps({"values": RATE, "donor": ""} | record))
    return trainable(QUICKSTART, "trainer.updates=4", folder=folder, metric=metric)(RATE)


def reports(one: RunTrial) -> list[tuple[int, float]]:
    """What a trial reports to its end."""
    found = [one.step()]
    while not found[-1]["done"]:
        found.append(one.step())
    return [(report["update"], report["score"]) for report in found]


def test_a_finished_run_is_reported_again(tmp_path: Path) -> None:
    assert reports(trial(tmp_path, {}, "finished")) == [(1, 0.1), (2, 0.2), (3, 0.5), (4, 0.4)]


def test_a_recipe_has_the_names_that_train_knows() -> None:
    assert trainable("quickstart").path.name == "quickstart.yaml"


def test_a_trial_that_the_sweep_ended_ends_there_again(tmp_path: Path) -> None:
    one = trial(tmp_path, {"stopped_at": 3}, "stopped")
    assert reports(one) == [(1, 0.1), (2, 0.2), (3, 0.5)]


def test_only_updates_with_the_metric_are_reported(tmp_path: Path) -> None:
    assert reports(trial(tmp_path, {}, "finished", "eval/reward")) == [(2, 0.2)]


def test_the_last_update_counts_only_after_the_end_of_the_run(tmp_path: Path) -> None:
    one = trial(tmp_path, {}, "stopped")
    assert [one.step()["update"] for _ in range(3)] == [1, 2, 3]
    with pytest.raises(TrialFailed, match="a process was started"):
        one.step()
    assert json.loads((tmp_path / "default.json").read_text())["failure"] == "a process was started"


def test_a_run_of_other_values_is_moved_aside(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match="a process was started"):
        trial(tmp_path, {"values": {"seed": 3}}, "finished").step()
    assert (tmp_path / "default.1" / "metrics.jsonl").exists()
    assert json.loads((tmp_path / "default.json").read_text())["values"] == RATE


def test_another_trial_goes_on_from_a_copy(tmp_path: Path) -> None:
    one = trial(tmp_path, {}, "finished")
    one.load_checkpoint({"trial": "other", "run": "other", "donor": "", "update": 2})
    with pytest.raises(TrialFailed):
        one.step()
    assert json.loads((tmp_path / "default.at-0002.json").read_text())["donor"] == "other"
    with pytest.raises(TrialFailed, match="has no checkpoint of update 2"):
        copy_run(tmp_path / "default", tmp_path / "copy", 2)


def test_a_copy_has_no_metrics_after_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    donor = made_run(tmp_path / "donor", ROWS)
    (donor / "checkpoints" / "version-000002").mkdir(parents=True)
    monkeypatch.setattr("rlhf.apps.sweeps.trial.is_whole", Path.is_dir)
    copy_run(donor, tmp_path / "copy", 3)
    assert [row["update"] for row in read_metrics(tmp_path / "copy" / "metrics.jsonl")] == [1, 2]
    assert len(read_metrics(donor / "metrics.jsonl")) == 4


def test_what_pbt_draws_at_an_update_follows_from_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(*given: object) -> str:
        return f"{random.random()} {np.random.random()}"

    monkeypatch.setattr(PopulationBasedTraining, "on_trial_result", drawn)
    domain = {"hyperparam_mutations": {"a": [1, 2]}}
    one, other = (SeededPopulation(seed, **domain) for seed in (7, 8))
    first, again, later = (one.on_trial_result(None, Trial("x", stub=True), {"update": n}) for n in (2, 2, 4))
    assert first == again
    assert len({first, later, other.on_trial_result(None, Trial("x", stub=True), {"update": 2})}) == 3


def test_reports_come_again_in_the_same_order(tmp_path: Path) -> None:
    first = ReportOrder(tmp_path)
    first.begin()
    for report in ("b 1", "a 1", "b 2"):
        first.add(report)
    again, come = ReportOrder(tmp_path), []
    again.begin()

    def report(words: str) -> None:
        again.wait(words)
        come.append(words)
        again.add(words)

    waiting = Thread(target=report, args=("a 1",))
    waiting.start()
    waiting.join(0.2)
    assert come == []
    report("b 1")
    waiting.join(10)
    report("c 1")
    assert come == ["b 1", "a 1", "c 1"]


def test_speed_is_the_mean_of_updates_without_the_first(tmp_path: Path) -> None:
    made_run(
        tmp_path / "default", [{"seconds/update": seconds} for seconds in (9.0, 3.0, 5.0)], {"outcome": "finished"}
    )
    (tmp_path / "default.json").write_text(json.dumps({"values": RATE, "donor": ""}))
    assert reports(trainable(QUICKSTART, "trainer.updates=3", folder=tmp_path, metric=SPEED)(RATE)) == [
        (2, 3.0), (3, 4.0)
    ]  # fmt: skip


def test_each_axis_is_tried_on_top_of_the_quickest_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a made machine of 4 cores two engines with large micro-batches are quickest, and two ranks fail."""
    cores = Machine(nodes=1, cards=0, card=None, cores=4, host_memory=2**36)
    monkeypatch.setattr("rlhf.apps.sweeps.search.here", lambda: cores)
    overrides = ["rollout.engines=1", "trainer.deepspeed.ranks=1"]
    search, tried = AxisByAxis(load_recipe(QUICKSTART, overrides).recipe), []
    while (changes := search.suggest("a")) != search.FINISHED:
        tried.append(changes)
        seconds = 8.0 / changes.get("rollout.engines", 1) - changes.get("trainer.tokens_per_microbatch", 0) / 1e5
        failed = changes.get("trainer.deepspeed.ranks") == 2
        search.on_trial_complete("a", None if failed else {"score": seconds}, error=failed)
    tokens = tried[1]
    assert tried[0] == {}
    assert all(tokens.items() <= changes.items() for changes in tried[3:])
    assert [changes.get("rollout.engines") for changes in tried[3:]] == [None, 2, None]
    assert tried[4]["rollout.cpus_per_engine"] == 0.25, "two engines share what one had"


def test_splits_that_do_not_fit_are_not_tried() -> None:
    recipe, machine = load_recipe(recipe_file("math_7b_one_node")).recipe, machine_of("8xH100", 1)
    *_, splits = speed_axes(recipe, machine)
    numbers = [(one["rollout.engines"], one["trainer.deepspeed.ranks"]) for one in splits]
    assert numbers == [(3, 2), (1, 6)], "two engines of two GPUs beside four ranks"
    assert [fits(recipe, one, machine) for one in splits] == [False, True], "two ranks cannot hold the state"
    assert not fits(recipe, {"rollout.engines": 3}, machine)
