"""Loggers to experiment trackers, each through its own library, which is imported when a recipe names it.

Account, server and mode are set by the variables of each library. A resumed run continues its run in the tracker.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config import flatten
from rlhf.runs.loggers import EpisodeRow, LoggedRun

PROJECT = "rlhf"
TABLE = "episodes"
PARAMETERS_AT_ONCE = 100
NOT_IN_MLFLOW = re.compile(r"[^\w\-. :/]", re.ASCII)


class WandbLogger:
    """Weights & Biases (`WANDB_MODE=offline`, `WANDB_PROJECT`)."""

    def __init__(self, run: LoggedRun) -> None:
        self._library: Any = importlib.import_module("wandb")
        run_id = run.known_id("wandb") or uuid.uuid4().hex
        run.keep_id("wandb", run_id)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = self._library.init(
            project=project, name=run.name, dir=str(run.folder.path), config=dict(run.recipe), id=run_id, resume="allow"
        )

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=update)

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None:
        table = self._library.Table(columns=list(EpisodeRow._fields), data=[list(row) for row in episodes])
        self._run.log({TABLE: table}, step=update)

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """MLflow (`MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`). Its names have no `@`: `pass@8` is `pass_at_8`."""

    def __init__(self, run: LoggedRun) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        known = run.known_id("mlflow")
        self._id: str = known or self._created(run)
        if known is None:
            run.keep_id("mlflow", self._id)
            self._log_parameters(run.recipe)
        else:
            self._client.update_run(self._id, status="RUNNING")

    def _created(self, run: LoggedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        return str(self._client.create_run(experiment, run_name=run.name).info.run_id)

    def _log_parameters(self, recipe: Mapping[str, Any]) -> None:
        parameters = [self._entities.Param(mlflow_name(key), str(value)) for key, value in flatten(recipe)]
        for start in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[start : start + PARAMETERS_AT_ONCE])

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        now, one = int(1000 * time.time()), self._entities.Metric
        self._client.log_batch(
            self._id, [one(mlflow_name(name), value, now, update) for name, value in metrics.items()]
        )

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows([EpisodeRow._fields, *episodes])
        self._client.log_text(self._id, text.getvalue(), f"{TABLE}/update_{update:06d}.csv")

    def close(self) -> None:
        self._client.set_terminated(self._id)


class TrackioLogger(WandbLogger):
    """Trackio, which keeps its runs in a folder of this machine (`TRACKIO_DIR`), and has the calls of W&B."""

    def __init__(self, run: LoggedRun) -> None:
        self._library = importlib.import_module("trackio")
        name = run.known_id("trackio") or f"{run.name}-{uuid.uuid4().hex[:8]}"
        run.keep_id("trackio", name)
        self._run = self._library.init(
            project=PROJECT, name=name, config=dict(flatten(run.recipe)), resume="allow", embed=False
        )


class CometLogger:
    """Comet (`COMET_API_KEY`, `COMET_WORKSPACE`, `COMET_START_ONLINE=0`)."""

    def __init__(self, run: LoggedRun) -> None:
        comet: Any = importlib.import_module("comet_ml")
        key = run.known_id("comet") or uuid.uuid4().hex
        run.keep_id("comet", key)
        quiet = comet.ExperimentConfig(
            name=run.name, log_code=False, parse_args=False, auto_output_logging=False, auto_metric_logging=False,
            auto_param_logging=False, display_summary_level=0,
        )  # fmt: skip
        self._experiment = comet.start(project_name=PROJECT, experiment_key=key, experiment_config=quiet)
        self._experiment.log_parameters(dict(flatten(run.recipe)))

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        self._experiment.log_metrics(dict(metrics), step=update)

    def log_episodes(self, update: int, episodes: Sequence[EpisodeRow]) -> None:
        rows = [list(row) for row in episodes]
        self._experiment.log_table(f"{TABLE}_{update:06d}.csv", rows, headers=list(EpisodeRow._fields))

    def close(self) -> None:
        self._experiment.end()


def mlflow_name(name: str) -> str:
    """Return a name in the characters that MLflow allows."""
    return NOT_IN_MLFLOW.sub("_", name.replace("@", "_at_"))
