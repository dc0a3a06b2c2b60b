"""Kill and stop engines of a run at random moments, by a seed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.end_to_end.running import QUICKSTART, ROOT, Run, command, environment
from tests.pace import scaled

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
