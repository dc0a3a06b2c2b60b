"""`rlhf fit` trains a recipe for a few updates with each of some settings, and writes the quickest as a recipe."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from rlhf.apps.cli.plan import as_overrides
from rlhf.apps.failures import reporting_failures
from rlhf.apps.sweeps.forks import Forks, forks_for, python_for
from rlhf.apps.sweeps.results import failure_in, write_on_top
from rlhf.cluster.leftovers import end_process
from rlhf.cluster.roles import table
from rlhf.cluster.supervisor import supervise
from rlhf.controller.resume import TIMES
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.candidates import candidate_axes
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.fitting import Changes
from rlhf.recipe.planning.halving import TrialResult, halved, quickest
from rlhf.recipe.planning.layout import PROMPT_TOKENS
from rlhf.recipe.planning.machines import here
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.stored_run import read_metrics

SHORT = (
    "trainer.eval_every=0", "trainer.save_every=0", "trainer.save_every_minutes=0", "data.eval=null", "run.loggers=[]",
    "run.live=false", "run.show_replies=false", "run.max_restarts=0",
)  # fmt: skip
"""Overrides with which a trial does nothing but updates."""
TRIAL_SECONDS, END_SECONDS = 1800.0, 15.0
BESIDE = ("evaluate", "save")
STOPPED = 130


def run_fit(recipe: Path, overrides: Sequence[str], *, trials: int, minutes: float, folder: Path | None) -> int:
    """Try settings, print a table, and write the quickest. After Ctrl-C this is done with what there is, and the same
    command goes on. Raises `UserError`."""
    loaded = located(load_recipe(recipe, overrides)).recipe
    if not loaded.plays:
        raise UserError(f"{recipe} is of kind {loaded.kind}: only runs that play episodes are fitted")
    preflight(loaded)
    place = folder or Path("runs") / f"{loaded.name}.fit"

    def program() -> int:
        place.mkdir(parents=True, exist_ok=True)
        with forks_for(loaded, place / "forks.log") as forks:
            search = Trials(recipe, overrides, loaded, place, time.monotonic() + 60 * minutes, forks)
            return search.run(candidate_axes(loaded, here(), estimator(loaded, None, PROMPT_TOKENS)), trials)

    return supervise(reporting_failures(program))


class Trials:
    """Trials of a recipe, with their results in a folder: those that are there are not made again, unless they failed,
    for which a busy machine may be the cause."""

    def __init__(
        self, recipe: Path, overrides: Sequence[str], loaded: Recipe, folder: Path, ends_at: float, forks: Forks | None
    ) -> None:
        self._recipe, self._overrides, self._loaded, self._folder = recipe, tuple(overrides), loaded, folder
        self._ends_at, self._forks = ends_at, forks
        self._key = hashlib.sha256(loaded.model_dump_json().encode()).hexdigest()[:16]
        self._file = folder / "trials.jsonl"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, axes: Sequence[Sequence[Changes]], trials: int) -> int:
        results: list[TrialResult] = []
        code = 0
        try:
            for result in halved(axes, self.measured, trials):
                results.append(result)
                print(self._line(result), flush=True)
                if time.monotonic() > self._ends_at:
                    break
        except KeyboardInterrupt:
            code = STOPPED
        finally:
            self._end()
        print("\n".join(["", *result_table(results, self._loaded.trainer.samples_per_update)]))
        best = quickest(results)
        if best is None:
            print("no trial gave a time", file=sys.stderr)
            return code or 1
        written = self._write(best, results)
        print(f"quickest: {as_overrides(best.changes)}\n{written} is the recipe with it: rlhf train {written}")
        return code

    def measured(self, changes: Changes, updates: int) -> TrialResult:
        """Return the result in the folder, or of a new trial."""
        for row in read_jsonl(self._file) if self._file.is_file() else ():
            same = (row.pop("recipe"), row["changes"], row["updates"]) == (self._key, changes, updates)
            if same and row["seconds"] is not None:
                return TrialResult(**row)
        result = self._trial(changes, updates)
        with self._file.open("a") as file:
            file.write(json.dumps({"recipe": self._key, **asdict(result)}) + "\n")
        return result

    def _trial(self, changes: Changes, updates: int) -> TrialResult:
        run = self._folder / "trial"
        shutil.rmtree(run, ignore_errors=True)
        all = 1 + updates + self._loaded.trainer.max_staleness  # at its end a run plays nothing ahead
        settings = [*self._overrides, *(f"{key}={value}" for key, value in changes.items()), *SHORT]
        given = [*settings, f"trainer.updates={all}", f"run.dir={run}"]
        python, variables = python_for(load_recipe(self._recipe, given).recipe, self._forks)
        command = [*python, "-m", "rlhf", "train", str(self._recipe), *given]
        log = self._folder / "trial.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=os.environ | variables, start_new_session=True
            )
            try:
                code = self._process.wait(TRIAL_SECONDS)
            except subprocess.TimeoutExpired:
                self._end()
                code = None
        if code != 0:
            failure = f"no end after {TRIAL_SECONDS:g} s" if code is None else failure_in(log, code)
            return TrialResult(changes=changes, updates=updates, seconds=None, failure=failure)
        return TrialResult(changes=changes, updates=updates, seconds=update_seconds(RunFolder(run), 1, 1 + updates))

    def _end(self) -> None:
        """End a trial that runs."""
        if self._process is not None:
            end_process(self._process, END_SECONDS)

    def _line(self, result: TrialResult) -> str:
        took = result.failure if result.seconds is None else f"{result.seconds:.2f} s an update"
        return f"{as_overrides(result.changes)}: {took}"

    def _write(self, best: TrialResult, results: Sequence[TrialResult]) -> Path:
        """Write the recipe with the quickest settings, as one on top of the tried recipe."""
        written = self._folder / "fitted.yaml"
        words = f"The quickest of {len(results)} trials: {best.seconds:.2f} s an update."
        changes = (f"{key}={value}" for key, value in best.changes.items())
        write_on_top(written, self._recipe, [f"name={self._loaded.name}", *self._overrides, *changes], words)
        return written


def update_seconds(folder: RunFolder, first: int, last: int) -> float:
    """Return the mean seconds of the updates after the first ones, without what is beside them."""
    rows = read_metrics(folder.metrics)[first:last]
    return fmean(
        (row.get(f"{TIMES}update") or 0.0) - sum(row.get(f"{TIMES}{name}") or 0.0 for name in BESIDE) for row in rows
    )


def result_table(results: Sequence[TrialResult], samples: int) -> list[str]:
    """Make a table of all trials, the quickest first."""
    rows = [("settings", "updates", "s an update", "samples/s")]
    for one in sorted(results, key=lambda one: one.rank):
        times = ("-", "-") if one.seconds is None else (f"{one.seconds:.2f}", f"{samples / one.seconds:.1f}")
        rows.append((as_overrides(one.changes), f"{one.updates}", *times))
    return table(rows, text_columns=1).splitlines()
