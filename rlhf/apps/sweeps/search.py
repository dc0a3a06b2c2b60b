"""A sweep by Ray Tune: its own schedulers and searchers, by name. Import this after Ray's settings are in the
environment."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.tune.search.optuna import OptunaSearch

from rlhf.apps.sweeps.forks import Forks
from rlhf.apps.sweeps.order import ReportOrder
from rlhf.apps.sweeps.request import REDUCTION, Sweep
from rlhf.apps.sweeps.results import FINISHED, STOPPED, SweptRun
from rlhf.apps.sweeps.space import Search
from rlhf.apps.sweeps.speed import SHORT, SPEED, fits, speed_axes
from rlhf.apps.sweeps.trial import SCORE, UPDATE, needs, read_record, trainable, write_record
from rlhf.cluster.machine import this_machine
from rlhf.recipe.planning.fitting import Changes
from rlhf.recipe.planning.machines import here
from rlhf.recipe.schema import Recipe

Told = Callable[[SweptRun], None]


def run_trials(sweep: Sweep, board: Board, forks: Forks | None) -> None:
    """Run every trial to its end. The order of trials, and what is drawn, are the same in every call."""
    logging.getLogger("ray.tune").setLevel(logging.ERROR)
    board.order.begin()
    own: tuple[str, ...] = (*SHORT, f"trainer.updates={sweep.updates}") if sweep.metric == SPEED else ()
    if sweep.algorithm == "pbt":  # a run may be ahead of the update that is taken over
        own = (f"trainer.save_every={sweep.interval}", f"trainer.keep_checkpoints={sweep.updates}")
    source = trainable(sweep.recipe, *sweep.overrides, *own, folder=sweep.folder, metric=sweep.metric, forks=forks)
    config = tune.TuneConfig(
        metric=SCORE,
        mode=sweep.mode,
        scheduler=scheduler(sweep),
        search_alg=searcher(sweep),
        num_samples=1 if sweep.whole_grid else sweep.samples,
        max_concurrent_trials=at_once(sweep) if sweep.algorithm == "optuna" or sweep.metric == SPEED else None,
        reuse_actors=True,
        trial_name_creator=lambda trial: board.named(),  # Tune copies objects for every trial, and functions not
        trial_dirname_creator=str,
    )
    alone = tune.FailureConfig(fail_fast=sweep.algorithm == "pbt")  # whose other trials would wait for one that failed
    run = tune.RunConfig(
        name="sweep", storage_path=tempfile.mkdtemp(), callbacks=[board], failure_config=alone, verbose=0
    )
    tune.Tuner(source, param_space=param_space(sweep), tune_config=config, run_config=run).fit()


def at_once(sweep: Sweep) -> int:
    """Return how many trials this machine holds at once. Trials for speed run alone."""
    if sweep.metric == SPEED:
        return 1
    wanted, machine = needs(sweep.loaded), this_machine()
    there = {"CPU": machine.cpus, "GPU": machine.gpus}
    return max(1, int(min(there[name] / amount for name, amount in wanted.items())))


def param_space(sweep: Sweep) -> dict[str, Any]:
    """Return Tune's space. ASHA, which ends no trial that is better than all before, gets a mixed grid."""
    if not sweep.whole_grid:
        return {key: domain(search) for key, search in sweep.space.items()}
    drawn = random.Random(sweep.loaded.seed)
    kept = {key: list(search.values) for key, search in sweep.space.items()}
    mixed = {key: drawn.sample(values, len(values)) for key, values in kept.items()}
    return {key: tune.grid_search(values) for key, values in (mixed if sweep.algorithm == "asha" else kept).items()}


def domain(search: Search) -> Any:
    """Return Tune's domain."""
    if search.form == "list":
        return tune.choice(list(search.values))
    low, high = search.values
    if search.form == "int":
        return tune.randint(low, high + 1)
    return (tune.loguniform if search.form == "log" else tune.uniform)(low, high)


def searcher(sweep: Sweep) -> Any:
    if not sweep.space:
        return AxisByAxis(sweep.loaded)
    if sweep.algorithm == "optuna":
        return OptunaSearch(seed=sweep.loaded.seed)
    return BasicVariantGenerator(random_state=sweep.loaded.seed)


def scheduler(sweep: Sweep) -> TrialScheduler | None:
    if sweep.algorithm == "asha":
        return ASHAScheduler(
            time_attr=UPDATE, max_t=sweep.updates, grace_period=sweep.looks[0], reduction_factor=REDUCTION
        )
    if sweep.algorithm != "pbt":
        return None
    ranges = {key: search for key, search in sweep.space.items() if search.form != "list"}
    lists = {key: list(search.values) for key, search in sweep.space.items() if search.form == "list"}

    def bounded(values: dict[str, Any]) -> dict[str, Any]:
        return values | {key: min(max(values[key], one.values[0]), one.values[1]) for key, one in ranges.items()}

    return SeededPopulation(
        sweep.loaded.seed,
        time_attr=UPDATE,
        perturbation_interval=sweep.interval,
        hyperparam_mutations=lists | {key: domain(search) for key, search in ranges.items()},
        custom_explore_fn=bounded,
        synch=True,  # so that what is exploited does not depend on which trial is quicker
        log_config=False,
    )


class SeededPopulation(PopulationBasedTraining):
    """PBT whose draws at an update follow from the seed alone. It draws from generators that all code shares."""

    def __init__(self, seed: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._seed = seed

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        random.seed(f"{self._seed} {result[UPDATE]}")
        np.random.seed(random.getrandbits(32))
        return str(super().on_trial_result(tune_controller, trial, result))


class AxisByAxis(Searcher):
    """Tries a recipe as it is, then the settings that decide its speed and fit this machine: one axis after the other,
    each on top of the quickest so far."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(metric=SCORE, mode="min")
        self._recipe, self._machine = recipe, here()
        self._axes = speed_axes(recipe, self._machine)
        self._left: list[Changes] = [{}]
        self._tried: Changes = {}
        self._best: tuple[float, Changes] = (inf, {})

    def suggest(self, trial_id: str) -> Any:
        while self._axes and not self._left:
            changed = [self._best[1] | change for change in self._axes.pop(0)]
            self._left = [changes for changes in changed if fits(self._recipe, changes, self._machine)]
        if not self._left:
            return Searcher.FINISHED
        self._tried = self._left.pop(0)
        return self._tried

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        if result and not error and result[SCORE] < self._best[0]:
            self._best = (result[SCORE], self._tried)


class Board(tune.Callback):
    """Follows the trials, and records at which update the sweep ended one."""

    def __init__(self, sweep: Sweep, tell: Told) -> None:
        self.trials: dict[str, SweptRun] = {}
        self.order = ReportOrder(sweep.folder)
        self._sweep, self._tell, self._names = sweep, tell, 0

    def named(self) -> str:
        """Name a new trial."""
        self._names += 1
        return f"trial-{self._names:04d}"

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        one = self.trials.setdefault(str(trial), SweptRun(name=str(trial), run=str(trial), values={}))
        one.values = dict(trial.config)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        one = self.trials[str(trial)]
        one.run = result["run"]
        self.order.add(f"{trial} {result[UPDATE]}")
        one.scores = [*(point for point in one.scores if point[0] < result[UPDATE]), (result[UPDATE], result[SCORE])]

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        one = self.trials[str(trial)]
        run = self._sweep.folder / one.run
        one.outcome = FINISHED if trial.last_result["whole"] else STOPPED
        if one.outcome == STOPPED:
            write_record(run, read_record(run) | {"stopped_at": one.updates})
        self._tell(one)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        one = self.trials[str(trial)]
        one.outcome = f"failed: {read_record(self._sweep.folder / one.run).get('failure', 'its process was killed')}"
        self._tell(one)
