"""`python -m benchmarks fit`: how near the settings that `rlhf fit` finds come to the best of a full grid.

Trials and grid share their results in one folder, so a setting that both try counts with one measurement.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import product
from math import inf
from pathlib import Path

from benchmarks.end_to_end.command import pin
from rlhf.apps.cli.trials import Trials
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.candidates import candidate_axes
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.halving import TrialResult, halved, quickest
from rlhf.recipe.planning.machines import here
from rlhf.recipe.resolve import located

TRIALS, BOUND = 10, 0.95
RECIPES = {
    "quickstart": (),
    "10M": (
        "model.tiny.hidden_size=384", "model.tiny.intermediate_size=1152", "model.tiny.layers=6", "model.tiny.heads=6",
        "model.tiny.kv_heads=2", "model.warmup=null", "trainer.groups_per_update=32",
    ),
}  # fmt: skip
"""Overrides of the quickstart."""
GRID_UPDATES = 6


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks fit", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=RECIPES, default=RECIPES)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/benchmark.fit"), help="what was measured is kept here"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no trial after so many; go on later")
    options = parser.parse_args(arguments)
    pin()
    ends_at, figures = time.monotonic() + 60 * options.minutes, {}
    for name in options.only:
        figures[name] = compared(RECIPES[name], options.folder / name, ends_at)
        print(f"{name}: {figures[name]}", flush=True)
    print("RESULT", json.dumps({"benchmark": "fit", **figures}))
    if low := [name for name, share in figures.items() if share < BOUND]:
        sys.exit(f"missed: {', '.join(low)}")


def compared(overrides: Sequence[str], folder: Path, ends_at: float) -> float:
    """Return the speed of the settings that were found, as a share of the best in the grid."""
    path = Path("recipes/quickstart.yaml")
    recipe = located(load_recipe(path, overrides)).recipe
    folder.mkdir(parents=True, exist_ok=True)
    trials = Trials(path, overrides, recipe, folder, ends_at)

    def measure(changes: dict[str, str], updates: int) -> TrialResult:
        if time.monotonic() > ends_at:
            sys.exit("not done; the same command goes on")
        result = trials.measured(changes, updates)
        print(f"{changes} {updates}: {result.seconds} {result.failure}", flush=True)
        return result

    axes = candidate_axes(recipe, here(), estimator(recipe, None, 512))
    found = quickest(list(halved(axes, measure, TRIALS)))
    grid = [one | two for one, two in product([{}, *axes[0]], [{}, *axes[1][:1]])]
    whole = [measure(changes, GRID_UPDATES) for changes in grid]
    assert found is not None, "the recipe itself gave a time"
    again = measure(found.changes, GRID_UPDATES)
    best = min(one.seconds for one in [*whole, again] if one.seconds)
    return round(best / (again.seconds or inf), 3)
