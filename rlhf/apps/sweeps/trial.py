"""A trial: `rlhf train` in a separate process, whose metrics Ray Tune sees update by update.

What a trial reports is read from its run folder, and a process is started only for what is not there yet. So after a
sweep was killed, the same trials in the same order report the same again, and continue where they were. Import this
module after the settings of Ray are in the environment.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from ray import tune

from rlhf.apps.sweeps.forks import Forks, python_for
from rlhf.apps.sweeps.order import LOOK_SECONDS, ReportOrder
from rlhf.apps.sweeps.results import failure_in
from rlhf.apps.sweeps.space import as_words
from rlhf.apps.sweeps.speed import MEASURED_UPDATES, SPEED
from rlhf.cluster.leftovers import end_process
from rlhf.cluster.machine import this_machine
from rlhf.durable import write_durably
from rlhf.errors import RlhfError, TrialFailed
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.schema import Recipe
from rlhf.recipe.shipped import recipe_file
from rlhf.recipe.workers import roles_of
from rlhf.runs.folder import RunFolder, move_aside
from rlhf.runs.stored_run import MetricRow, is_written, read_metrics
from rlhf.trainer.checkpoint import checkpoints, is_whole

SCORE, UPDATE = "score", "update"
"""What every report has in addition to the run's metrics."""
END_SECONDS = 25.0
"""What a run that is asked to end may take; more than its own guard gives it."""
PR_SET_PDEATHSIG = 1
OF_ONE_RUN = ("owner", "checkpoints", "logs", "summary.json", "reward.png", "tensorboard", "trackers")
"""What a copy of a run leaves behind: the checkpoint is copied by itself, and trackers would take both for one run."""


def trainable(
    recipe: str | Path,
    *overrides: str,
    folder: str | Path | None = None,
    metric: str | None = None,
    forks: Forks | None = None,
) -> type[RunTrial]:
    """Return a trainable for `tune.Tuner`, whose `param_space` has dotted keys of the recipe.

    It reports every update that has the `metric` [default: the held-out reward, and where it was not evaluated the
    training reward] as `score`, with all metrics of the run, and `update`, by which schedulers count. Each trial is a
    run folder in `folder` [default: runs/NAME.sweep], and starts faster from `forks`. Raises `ConfigError`.
    """
    path = recipe_file(recipe).absolute()
    loaded = load_recipe(path, overrides).recipe
    place = Path(folder) if folder else Path("runs") / f"{loaded.name}.sweep"
    asked = {"path": path, "overrides": overrides, "metric": metric, "forks": forks}
    return type("RunTrial", (RunTrial,), asked | {"recipe": loaded, "place": place.absolute(), "here": Path.cwd()})


def needs(recipe: Recipe) -> dict[str, float]:
    """Return what a trial takes of this machine, by Ray's names: what its workers reserve."""
    roles, machine = roles_of(recipe), this_machine()
    cores = sum(role.count * role.cpus for role in roles)
    gpus = sum(role.count * role.own_gpus for role in roles)
    wanted = {"CPU": min(max(cores, 1.0), machine.cpus), "GPU": gpus if gpus < 1 else math.ceil(gpus)}
    return {name: amount for name, amount in wanted.items() if amount}


class RunTrial(tune.Trainable):
    """One trial. Its state for Tune is the run folder and the update. A trial that takes over another one's state
    copies that run with its checkpoint, and continues in its own folder."""

    path: ClassVar[Path]
    overrides: ClassVar[tuple[str, ...]]
    recipe: ClassVar[Recipe]
    place: ClassVar[Path]
    metric: ClassVar[str | None]
    here: ClassVar[Path]
    forks: ClassVar[Forks | None]

    @classmethod
    def default_resource_request(cls, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([needs(cls.recipe)])

    def setup(self, config: Mapping[str, Any]) -> None:
        self._values = json.loads(json.dumps(dict(config), default=float))
        self._run, self._donor, self._update = RunFolder(self.place / self.trial_name), "", 0
        self._record: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._last: dict[str, Any] = {}

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Return the next update that has a score. The last one comes after the end of the run's process."""
        self._record = self._record or self._recorded()
        try:
            self._last = self._next_report()
        except RlhfError as error:  # when Tune reports it, the error is not known yet
            write_record(self._run.path, self._record | {"failure": str(error)})
            raise
        ReportOrder(self.place).wait(f"{self.trial_name} {self._update}")
        return self._last

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Name the run and the update, once the checkpoint is there that the run writes at this update."""
        every, checkpoint = self.recipe.trainer.save_every, self._run.checkpoints / f"version-{self._update:06d}"
        while isinstance(every, int) and every and self._update % every == 0 and self._is_running():
            if is_whole(checkpoint):
                break
            time.sleep(LOOK_SECONDS)
        return {"trial": self.trial_name, "run": self._run.path.name, "donor": self._donor, UPDATE: self._update}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        state = checkpoint or {}
        run, self._donor, self._update = state["run"], state["donor"], state[UPDATE]
        if state["trial"] != self.trial_name:
            run, self._donor = f"{self.trial_name}.at-{self._update:04d}", run
        self._run = RunFolder(self.place / run)

    def cleanup(self) -> None:
        if self._process is not None:
            end_process(self._process, END_SECONDS)

    def _recorded(self) -> dict[str, Any]:
        """Return the record next to the run folder. A folder of other values is moved aside."""
        record, before = {"values": self._values, "donor": self._donor}, read_record(self._run.path)
        if record.items() <= before.items():
            return before
        if self._run.path.exists():
            move_aside(self._run.path)
        self.place.mkdir(parents=True, exist_ok=True)
        write_record(self._run.path, record)
        return record

    def _next_report(self) -> dict[str, Any]:
        updates = self._values.get("trainer.updates", self.recipe.trainer.updates)
        while True:  # without a deadline: the run's own guard ends it when it is silent
            ended = self._has_ended()
            rows = read_metrics(self._run.metrics)
            scores = [(self._score(rows[: number + 1]), row) for number, row in enumerate(rows)]
            scored = [(score, row) for score, row in scores if score is not None and (row[UPDATE] or 0) > self._update]
            if scored and (len(scored) > 1 or ended or (scored[0][1][UPDATE] or 0) < updates):
                score, row = scored[0]
                whole, self._update = ended and len(scored) == 1, int(row[UPDATE] or 0)
                done = whole or self._update == self._record.get("stopped_at")
                own = {SCORE: score, UPDATE: self._update, "run": self._run.path.name, "whole": whole, "done": done}
                return {name: value for name, value in row.items() if value is not None} | own
            if ended and not self._last:
                raise TrialFailed(f"no update has {self.metric or 'a reward'}")
            if ended:
                return self._last | {"whole": True, "done": True}
            if self._process is None:
                self._start()
            time.sleep(LOOK_SECONDS)

    def _score(self, rows: Sequence[MetricRow]) -> float | None:
        """Score the last of these rows."""
        if self.metric == SPEED:
            seconds = [row.get("seconds/update") or 0.0 for row in rows[1 : 1 + MEASURED_UPDATES]]
            return fmean(seconds) if seconds else None
        row = rows[-1]
        held_out = row.get(self.metric or "eval/reward")
        return row.get("reward/mean") if held_out is None and not self.metric else held_out

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _has_ended(self) -> bool:
        """Whether the run is at its end, perhaps since an earlier sweep. Raises `TrialFailed` for another end."""
        if self._process is None:
            ended = self._run.summary.exists() and not is_written(self._run)
            return ended and str(json.loads(self._run.summary.read_text())["outcome"]).startswith("finished")
        code = self._process.poll()
        if code:
            raise TrialFailed(failure_in(self._log, code))
        return code == 0

    @property
    def _log(self) -> Path:
        return self._run.path.with_name(f"{self._run.path.name}.log")

    def _start(self) -> None:
        """Start the run, or continue it. The kernel ends it with this process."""
        path, until = self._run.path, time.monotonic() + END_SECONDS
        if self._donor and not path.exists():
            copy_run(self.place / self._donor, path, self._update)
        while is_written(self._run) and time.monotonic() < until:  # of a sweep that was killed
            time.sleep(LOOK_SECONDS)
        given = [*self.overrides, *as_words(self._values), f"run.dir={path}", "run.live=false"]
        python, variables = python_for(load_recipe(self.path, given).recipe, self.forks)
        words = ["-m", "rlhf", "train", str(self.path), *given, *(["--resume"] if path.exists() else [])]
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TUNE_"))}
        end_with_parent = partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*python, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.here,
                env=own | variables, start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip


def read_record(run: Path) -> dict[str, Any]:
    """Return what is recorded next to a run folder: the trial's values, and the update at which the sweep ended it."""
    file = run.with_name(f"{run.name}.json")
    return dict(json.loads(file.read_text())) if file.exists() else {}


def write_record(run: Path, record: Mapping[str, Any]) -> None:
    write_durably(run.with_name(f"{run.name}.json"), json.dumps(record) + "\n")


def copy_run(donor: Path, target: Path, update: int) -> None:
    """Copy a run with its newest whole checkpoint that is not after the update, and no metrics of later updates. Raises
    `TrialFailed` without a checkpoint."""
    found = [path for path in checkpoints(donor / "checkpoints") if int(path.name[-6:]) <= update and is_whole(path)]
    if not found:
        raise TrialFailed(f"{donor} has no checkpoint of update {update} or before: set trainer.save_every")
    copying = target.with_name(f".{target.name}")
    shutil.rmtree(copying, ignore_errors=True)
    shutil.copytree(donor, copying, ignore=shutil.ignore_patterns(*OF_ONE_RUN))
    shutil.copytree(found[-1], copying / "checkpoints" / found[-1].name, copy_function=os.link)  # are never changed
    metrics, version = RunFolder(copying).metrics, int(found[-1].name[-6:])
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(takewhile(lambda line: json.loads(line)[UPDATE] <= version, lines)))
    copying.rename(target)
