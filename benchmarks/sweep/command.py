"""`python -m benchmarks sweep`: the time in which ASHA finds the best of 8 learning rates, against a full grid.

Both sweep the same values of the quickstart, each in a folder: a benchmark that was stopped continues, and the times of
its calls are added.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.end_to_end.command import pin
from rlhf.apps.sweeps.results import SweepResults, read_results

BOUND = 0.6
RATES = [1e-6, 5e-6, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 2e-3]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks sweep", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark.sweep"), help="what was run is kept here")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE", help="of the quickstart")
    options = parser.parse_args(arguments)
    pin()
    make_start_model(options.folder / "start", options.override)
    found = {name: swept(name, options.folder / name, options.override) for name in ("asha", "grid")}
    seconds = {name: float((options.folder / f"{name}.seconds").read_text()) for name in found}
    share = round(seconds["asha"] / seconds["grid"], 3)
    bests = {name: one.best.values for name, one in found.items() if one.best}
    updates = {name: sum(trial.updates for trial in one.trials) for name, one in found.items()}
    figures = {"share": share, "seconds": seconds, "updates": updates, "best": bests}
    print("RESULT", json.dumps({"benchmark": "sweep", **figures}))
    if share > BOUND or bests["asha"] != bests["grid"]:
        sys.exit(f"missed: {share} of the grid's time, best {bests}")


def make_start_model(folder: Path, overrides: Sequence[str]) -> None:
    """Train for an update: both sweeps find the start model that this makes, and the time that it takes is nobody's."""
    if not folder.exists():
        words = ["recipes/quickstart.yaml", f"run.dir={folder}", *overrides, "trainer.updates=1"]
        subprocess.run([sys.executable, "-m", "rlhf", "train", *words], check=True)


def swept(algorithm: str, folder: Path, overrides: Sequence[str]) -> SweepResults:
    """Run or continue a sweep, and add its seconds to those of earlier calls."""
    search = f"trainer.optimizer.learning_rate={json.dumps(RATES)}"
    clock, began = folder.with_name(f"{algorithm}.seconds"), time.monotonic()
    words = ["recipes/quickstart.yaml", search, *overrides, "--algorithm", algorithm, "--folder", str(folder)]
    before = float(clock.read_text()) if clock.exists() else 0.0
    folder.parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen([sys.executable, "-m", "rlhf", "sweep", *words]) as process:
        while process.poll() is None:
            time.sleep(0.5)
            clock.write_text(str(before + time.monotonic() - began))
    if process.returncode:
        sys.exit(f"the sweep by {algorithm} ended with code {process.returncode}; the same command continues")
    return read_results(folder)
