"""A run of `rlhf train` in processes of its own, as anybody would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rlhf.commands.gpu_checks.machine import RunEnd

END_SECONDS = 30.0
TIMED_OUT = 124
POLL_SECONDS = 0.1


def train_run(
    folder: Path,
    name: str,
    recipe: dict[str, Any],
    overrides: Sequence[str],
    seconds: float,
    *,
    resume: bool = False,
    victim: str = "",
) -> RunEnd:
    """Train `recipe` with overrides in `folder/name`, with the output in `folder/name.log`. A run that is not done in
    time is told to end, by SIGTERM, and its exit code is 124. The worker called `victim` is killed after the first
    update."""
    folder.mkdir(parents=True, exist_ok=True)
    file, run, log = folder / f"{name}.yaml", folder / name, folder / f"{name}.log"
    file.write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "rlhf", "train", str(file), *overrides, f"run.dir={run}"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *(["--resume"] if resume else [])],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    try:
        deadline = time.monotonic() + seconds
        if victim:
            kill_after_first_update(process, run, victim, deadline)
        code = process.wait(max(deadline - time.monotonic(), POLL_SECONDS))
    except subprocess.TimeoutExpired:
        _end(process)
        code = TIMED_OUT
    return run_end(code, run, log)


def kill_after_first_update(process: subprocess.Popen[bytes], run: Path, victim: str, deadline: float) -> None:
    """Kill the worker whose output goes to the log of this name, once a run has an update behind it."""
    metrics, log = run / "metrics.jsonl", str(run / "logs" / f"{victim}.log")
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and metrics.stat().st_size:
            for worker in psutil.process_iter():
                with suppress(OSError, psutil.Error):
                    if os.readlink(f"/proc/{worker.pid}/fd/1") == log:
                        worker.kill()
            return
        time.sleep(POLL_SECONDS)


def run_end(code: int, run: Path, log: Path) -> RunEnd:
    """What is in a run folder, as far as the run came."""
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("error:")]
    summary, metrics = run / "summary.json", run / "metrics.jsonl"
    return RunEnd(
        code=code,
        said=(errors or said or ["it said nothing"])[-1],
        summary=json.loads(summary.read_text()) if summary.exists() else {},
        metrics=[json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else [],
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_SECONDS)
