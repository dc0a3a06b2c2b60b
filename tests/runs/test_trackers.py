"""Each experiment tracker, by its own package, holds the numbers of metrics.jsonl, also after a resume."""

from __future__ import annotations

import importlib
import json
import math
import struct
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf.runs.folder import RunFolder
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.loggers import EpisodeRow, LoggedRun, make_loggers

pytestmark = pytest.mark.ecosystem
ROW = EpisodeRow("t/1", '1+1="?', "=2\n<b>", 1.0, "terminated", 3)
RECIPE = {"name": "run", "trainer": {"updates": 3, "loss": {"clip_low": 0.2}}}
PASS = "eval/held_out/pass@8"
Numbers = dict[tuple[str, int], float]
"""By metric and update."""


def logged(tracker: str, path: Path) -> Numbers:
    """Log two updates, and a third after a resume. Returns the finite numbers of metrics.jsonl."""
    folder, told = RunFolder.create(path), list[str]()
    for updates in ((1, 2), (3,)):
        loggers = make_loggers([tracker], LoggedRun(folder, "run", RECIPE), told.append)
        for update in updates:
            loggers.log(update, {"reward/mean": update / 4, PASS: update / 8, "loss": math.nan})
        loggers.log_episodes(updates[-1], (ROW,))
        loggers.close()
        time.sleep(1)  # W&B names the folder of a process by the second
    assert told == []
    return numbers_of(read_jsonl(folder.metrics), "update", ("time", "update"))


def numbers_of(rows: Any, step: str, others: tuple[str, ...] = ()) -> Numbers:
    """The numbers of rows that have one for each metric."""
    return {
        (name, row[step]): value
        for row in rows
        for name, value in row.items()
        if name not in others and isinstance(value, float)
    }


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that every tracker writes to, without a network."""
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "COMET_START_ONLINE": "0",
        "COMET_OFFLINE_DIRECTORY": str(tmp_path / "comet"), "TRACKIO_DIR": str(tmp_path / "trackio"),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return tmp_path


def test_mlflow(here: Path) -> None:
    expected = logged("mlflow", here / "run")
    client = importlib.import_module("mlflow").MlflowClient()
    (experiment,) = (one for one in client.search_experiments() if one.name == "rlhf")
    (run,) = client.search_runs([experiment.experiment_id])
    renamed = {name.replace("_at_", "@"): name for name in run.data.metrics}
    found = {
        (n, one.step): one.value
        for n, name in renamed.items()
        for one in client.get_metric_history(run.info.run_id, name)
    }
    assert found == expected
    assert run.data.params == {"name": "run", "trainer.updates": "3", "trainer.loss.clip_low": "0.2"}
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    tables = [one.path for one in client.list_artifacts(run.info.run_id, "episodes")]
    assert tables == ["episodes/update_000002.csv", "episodes/update_000003.csv"]


def test_trackio(here: Path) -> None:
    expected = logged("trackio", here / "run")
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    (name,) = storage.get_runs("rlhf")
    rows = storage.get_logs("rlhf", name)
    assert numbers_of(rows, "step") == expected
    assert [row["step"] for row in rows if "episodes" in row] == [2, 3]
    assert storage.get_run_config("rlhf", name)["trainer.loss.clip_low"] == 0.2


def test_comet(here: Path) -> None:
    expected = logged("comet", here / "run")
    files = [zipfile.ZipFile(file) for file in (here / "comet").glob("*.zip")]
    messages = [json.loads(line)["payload"] for file in files for line in file.read("messages.json").splitlines()]
    metrics = [one["metric"] for one in messages if one.get("metric")]
    metrics = [one for one in metrics if not one["metricName"].startswith("sys.")]  # its own, of the machine
    assert {(one["metricName"], one["step"]): one["metricValue"] for one in metrics} == expected
    assert len({json.loads(file.read("experiment.json"))["offline_id"] for file in files}) == 1
    parameters = {one["param"]["paramName"]: one["param"]["paramValue"] for one in messages if one.get("param")}
    assert parameters["trainer.loss.clip_low"] == 0.2


def test_wandb_offline(here: Path) -> None:
    expected = logged("wandb", here / "run")
    records = [record for file in (here / "run/wandb").glob("offline-run-*/*.wandb") for record in wandb_records(file)]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    assert numbers_of(rows, "_step", ("_timestamp", "_runtime", "_step")) == expected
    assert sorted(row["_step"] for row in rows if any(name.startswith("episodes/") for name in row)) == [2, 3]
    assert len({record.run.run_id for record in records if record.HasField("run")}) == 1


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline file: a header of 7 bytes, then a LevelDB log in blocks of 32 KiB."""
    record_type = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, part = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # all of a record, or its last part
            yield record_type.FromString(whole)
            whole = b""
