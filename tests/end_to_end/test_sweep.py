"""`rlhf sweep` on real runs: what it leaves, how it goes on after SIGKILL, and Ray Tune's own API around our runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf.apps.sweeps.results import SweepResults, read_results
from rlhf.recipe.loading import load_recipe
from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, command, environment, run_cold
from tests.end_to_end.test_clean_ends import MARK, marked, until
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
LOCAL, NESTED = "cluster.kind=local", "cluster.kind=ray"
"""Without Ray a run starts sooner; with it there is a Ray within a Ray."""
KEY = "trainer.optimizer.learning_rate"
TINY = (*SMALL, "trainer.updates=3", LOCAL)
GRID = f"{KEY}=[0.0002,0.002]"
OWN_API = """
import json, sys
from rlhf.cluster.ray_connection import start_ray
from rlhf.cluster.supervisor import socket_folder

start_ray(socket_folder("ray-"))
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from rlhf import trainable

recipe, folder, scratch, *overrides = sys.argv[1:]
names = iter(["trial-0001", "trial-0002", "trial-0003"])
found = tune.Tuner(
    trainable(recipe, *overrides, folder=folder),
    param_space={"trainer.optimizer.learning_rate": tune.grid_search([0.0002, 0.002, 0.02])},
    tune_config=tune.TuneConfig(
        metric="score", mode="max", trial_name_creator=lambda trial: next(names),
        scheduler=ASHAScheduler(time_attr="update", max_t=3, grace_period=1, reduction_factor=2),
    ),
    run_config=tune.RunConfig(storage_path=scratch, verbose=0),
).fit()
print(json.dumps([[one.config, one.metrics["update"], one.metrics["score"], str(one.error)] for one in found]))
"""


def words(folder: Path, cache: Path, *more: str) -> tuple[str, ...]:
    """A sweep of tiny runs."""
    return ("sweep", str(QUICKSTART), *TINY, f"model.cache_dir={cache}", "--folder", str(folder), *more)


def swept(folder: Path, cache: Path, *more: str) -> SweepResults:
    """A whole sweep."""
    ended = run_cold(*words(folder, cache, *more))
    logs = "\n".join(log.read_text()[-800:] for log in folder.glob("*.log"))
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}\n{logs}"
    return read_results(folder)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> SweepResults:
    return swept(tmp_path_factory.mktemp("sweeps") / "grid", cache, GRID)


def test_each_trial_is_a_run_and_the_best_is_a_recipe(grid: SweepResults) -> None:
    for trial in grid.trials:
        summary = json.loads((grid.folder / trial.run / "summary.json").read_text())
        recipe = load_recipe(grid.folder / trial.run / "recipe.yaml").recipe
        assert (trial.outcome, trial.updates, trial.score) == ("finished", 3, summary["eval_reward_end"])
        assert {KEY: recipe.trainer.optimizer.learning_rate} == trial.values
    best = load_recipe(grid.best_recipe).recipe
    assert grid.best is not None
    assert grid.best.score == max(trial.score or 0.0 for trial in grid.trials)
    assert {KEY: best.trainer.optimizer.learning_rate} == grid.best.values
    assert (best.name, best.trainer.updates) == ("quickstart", 3)
    assert (grid.folder / "sweep.png").stat().st_size > 10_000


@pytest.mark.slow
def test_stock_tune_runs_our_runs(grid: SweepResults, tmp_path: Path, cache: Path) -> None:
    folder = Path(shutil.copytree(grid.folder, tmp_path / "own"))
    arguments = (str(QUICKSTART), str(folder), str(tmp_path / "tune"), *TINY, f"model.cache_dir={cache}")
    ended = subprocess.run(
        [sys.executable, "-c", OWN_API, *arguments], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=scaled(240),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = {config[KEY]: rest for config, *rest in json.loads(ended.stdout.splitlines()[-1])}
    assert found.keys() == {0.0002, 0.002, 0.02}
    assert {error for _, _, error in found.values()} == {"None"}
    updates, score, _ = found[grid.best.values[KEY]]  # type: ignore[union-attr]
    assert (updates, score) == (3, grid.best.score)  # type: ignore[union-attr]
    assert (folder / "trial-0003" / "metrics.jsonl").is_file()


@pytest.mark.slow
def test_after_sigkill_the_same_command_ends_with_the_same_table(
    grid: SweepResults, tmp_path: Path, cache: Path
) -> None:
    folder = tmp_path / "killed"
    sweeping = subprocess.Popen(
        command(*words(folder, cache, GRID)), cwd=ROOT, env=environment() | {MARK: str(folder)},
        stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert until(lambda: any(folder.glob("trial-*/metrics.jsonl")), scaled(240))
    os.killpg(sweeping.pid, signal.SIGKILL)
    sweeping.wait(scaled(20))
    assert until(lambda: not marked(folder), scaled(60))
    again = swept(folder, cache, GRID)
    assert [trial.scores for trial in again.trials] == [trial.scores for trial in grid.trials]
    assert [trial.values for trial in again.trials] == [trial.values for trial in grid.trials]


@pytest.mark.slow
def test_pbt_goes_on_from_the_better_run_with_other_values(tmp_path: Path, cache: Path) -> None:
    rate = f"{KEY}=log(1e-5,1e-2)"
    found = swept(tmp_path / "pbt", cache, rate, NESTED, "trainer.eval_every=1", "--algorithm", "pbt", "--samples", "2")
    assert [(trial.updates, trial.outcome) for trial in found.trials] == [(3, "finished")] * 2
    taken = [trial for trial in found.trials if ".at-" in trial.run]
    assert taken
    log = (found.folder / f"{taken[0].run}.log").read_text()
    assert f"changed since: {KEY}" in log
    assert "resuming from version-" in log


@pytest.mark.slow
def test_speed_is_found_in_short_trials_that_the_recipe_does_not_keep(tmp_path: Path, cache: Path) -> None:
    found = swept(tmp_path / "speed", cache, "--goal", "speed", "--samples", "2")
    own, other = sorted(found.trials, key=lambda trial: trial.name)
    assert (own.values, other.values) == ({}, {"trainer.tokens_per_microbatch": 16_384})
    assert [point for point, _ in own.scores] == [2, 3, 4, 5, 6]
    best = load_recipe(found.best_recipe).recipe
    assert (best.name, best.trainer.updates) == ("quickstart", 3)


@pytest.mark.slow
def test_optuna_draws_what_is_tried(tmp_path: Path, cache: Path) -> None:
    rate = f"{KEY}=log(1e-5,1e-2)"
    found = swept(
        tmp_path / "optuna", cache, rate, NESTED, "trainer.updates=1", "--algorithm", "optuna", "--samples", "3"
    )
    rates = {trial.values[KEY] for trial in found.trials}
    assert len(rates) == 3
    assert all(1e-5 <= rate <= 1e-2 for rate in rates)
