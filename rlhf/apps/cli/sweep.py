"""`rlhf sweep` trains a recipe with many values, by Ray Tune, and writes the best as a recipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from rlhf.apps.failures import reporting_failures
from rlhf.apps.sweeps.forks import forks_for
from rlhf.apps.sweeps.request import REDUCTION, Sweep, checked_sweep, owned
from rlhf.apps.sweeps.results import (
    FINISHED,
    PICTURE,
    RESULTS,
    RUNS,
    STOPPED,
    SweepResults,
    SweptRun,
    ranked,
    read_results,
    table_rows,
    write_results,
)
from rlhf.apps.sweeps.space import short_words, split_space
from rlhf.cluster.ray_connection import keep_our_sigterm, start_ray
from rlhf.cluster.supervisor import socket_folder, supervise

INTERRUPTED = 130
OF_TUNE = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
}
"""Tune writes no logs, because the run folders have them, and leaves Ctrl-C to us."""


def run_sweep(recipe: Path, words: Sequence[str] = (), **asked: Any) -> int:
    """Check a sweep, and run it under supervision. Raises `UserError` before anything has started."""
    space, overrides = split_space(words)
    return supervise(reporting_failures(partial(swept, checked_sweep(recipe, space, overrides, **asked))))


def swept(sweep: Sweep) -> int:
    """Run the trials that are not done yet, and show all. After Ctrl-C this shows what there is."""
    code, found = 0, read_results(sweep.folder) if (sweep.folder / RESULTS).exists() else None
    # An earlier call may have brought all trials to an end, and none of them failed.
    if (
        found is None
        or len(found.trials) != sweep.trials
        or {one.outcome for one in found.trials} - {FINISHED, STOPPED}
    ):
        code, found = searched(sweep)
    Console(width=None if sys.stdout.isatty() else 200).print(live_table(found.trials))
    if found.best is None:
        print("no trial has a score", file=sys.stderr)
        return code or 1
    print(
        f"best: {short_words(found.best.values)}\n{found.best_recipe} is the recipe with it: "
        f"rlhf train {found.best_recipe}\nthe curves: {sweep.folder / PICTURE}, and rlhf view {sweep.folder}"
    )
    return code or int(any(one.outcome == RUNS for one in found.trials))


def searched(sweep: Sweep) -> tuple[int, SweepResults]:
    """Run the trials, show them meanwhile, and write the results; the code is that of Ctrl-C, or 0."""
    os.environ |= OF_TUNE
    code = 0
    with owned(sweep), forks_for(sweep.loaded, sweep.folder / "forks.log") as forks:
        start_ray(socket_folder("ray-"))
        keep_our_sigterm()
        search = import_module("rlhf.apps.sweeps.search")  # reads Ray's settings
        print("\n".join(described(sweep, search.at_once(sweep))), flush=True)
        board = search.Board(sweep, (lambda one: None) if sys.stdout.isatty() else tell)

        def trials() -> list[SweptRun]:
            return ranked(list(board.trials.values()), sweep.mode)

        with Live(get_renderable=lambda: live_table(trials()), transient=True):  # nothing where there is no terminal
            try:
                search.run_trials(sweep, board, forks)
            except KeyboardInterrupt:
                code = INTERRUPTED
        own = [f"name={sweep.loaded.name}", *sweep.overrides]
        return code, write_results(sweep.folder, trials(), sweep.recipe, own)


def described(sweep: Sweep, at_once: int) -> list[str]:
    """Say what will be done."""
    metric = sweep.metric or "the held-out reward, and between evaluations the training reward"
    space = ", ".join(f"{key}={search}" for key, search in sweep.space.items())
    lines = [
        f"{sweep.algorithm} over {space}" if space else "the settings that decide speed, one after the other",
        f"budget: {sweep.updates} updates a trial, {sweep.trials} trials, {at_once} at once on this machine",
        f"score: {metric}; the {'largest' if sweep.mode == 'max' else 'smallest'} after the last update is best",
    ]
    if sweep.algorithm == "asha":
        looks = [str(n) for n in sweep.looks]
        lines.append(f"after {' and '.join(looks)} updates a trial continues if it is in the best 1/{REDUCTION} so far")
    if sweep.algorithm == "pbt":
        lines.append(f"every {sweep.interval} updates the worst quarter takes over runs of the best, with other values")
    return lines


def tell(one: SweptRun) -> None:
    """Print a line for a trial that ended."""
    print("  ".join(table_rows([one])[1]), flush=True)


def live_table(trials: Sequence[SweptRun]) -> Table:
    """Make the table of all trials, the best first."""
    head, *rows = table_rows(trials)
    table = Table(*head, box=None, header_style="bold")
    for row in rows:
        table.add_row(*row)
    return table
