"""What came of the trials of a sweep: a table, a picture, and the best one as a recipe."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf.apps.sweeps.space import TrialValues, as_words, short_words
from rlhf.config import dump_yaml, merge, parse_override
from rlhf.durable import write_durably
from rlhf.runs.plot import plot_curves

RESULTS, BEST, PICTURE = "results.json", "best.yaml", "sweep.png"
FINISHED, STOPPED, RUNS = "finished", "stopped", "runs"


@dataclass(slots=True, kw_only=True)
class SweptRun:
    """A trial so far: the name of its run folder, its newest values, and its scores by update."""

    name: str
    run: str
    values: TrialValues
    scores: list[tuple[int, float]] = field(default_factory=list)
    outcome: str = RUNS
    """`runs`, `finished`, `stopped` (by the sweep), or `failed: …`."""

    @property
    def updates(self) -> int:
        return self.scores[-1][0] if self.scores else 0

    @property
    def score(self) -> float | None:
        """The score after the last update; None of a trial that failed, or has none yet."""
        return self.scores[-1][1] if self.scores and not self.outcome.startswith("failed") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResults:
    """All trials, the best first: that with the best score among those that finished, else among those with most
    updates."""

    folder: Path
    trials: tuple[SweptRun, ...]

    @property
    def best(self) -> SweptRun | None:
        """The best trial; None if every trial failed."""
        return next((trial for trial in self.trials if trial.score is not None), None)

    @property
    def best_recipe(self) -> Path:
        """The file that `rlhf train` takes."""
        return self.folder / BEST


def ranked(trials: Sequence[SweptRun], mode: str) -> list[SweptRun]:
    """Sort trials: those that came to their own end first, then those with more updates, because scores of different
    updates do not compare."""
    sign = 1 if mode == "min" else -1

    def rank(one: SweptRun) -> tuple[bool, float, float, str]:
        length = math.inf if one.outcome == FINISHED else one.updates
        return one.score is None, -length, sign * (one.score or 0.0), one.name

    return sorted(trials, key=rank)


def table_rows(trials: Sequence[SweptRun]) -> list[tuple[str, ...]]:
    """Return the cells of a table, with its head."""
    rows: list[tuple[str, ...]] = [("trial", "values", "updates", "score", "outcome")]
    for one in trials:
        score = "-" if one.score is None else f"{one.score:.4f}"
        rows.append((one.name, short_words(one.values), str(one.updates), score, one.outcome))
    return rows


def write_results(folder: Path, trials: Sequence[SweptRun], recipe: Path, overrides: Sequence[str]) -> SweepResults:
    """Write the results into the sweep's folder: as JSON, as a picture, and the best values as a recipe on top of the
    swept one."""
    found = SweepResults(folder=folder, trials=tuple(trials))
    write_durably(folder / RESULTS, json.dumps([asdict(one) for one in trials], indent=1) + "\n")
    best = found.best
    if best is not None:
        curves = {f"{one.name} {short_words(one.values)}": one.scores for one in trials if one.scores}
        plot_curves(folder / PICTURE, curves, f"{len(trials)} trials, the best: {short_words(best.values)}")
        words = f"The best of {len(trials)} trials: score {best.score:.4f} after {best.updates} updates."
        write_on_top(found.best_recipe, recipe, [*overrides, *as_words(best.values)], words)
    return found


def read_results(folder: Path) -> SweepResults:
    """Read what `write_results` wrote."""
    rows: list[dict[str, Any]] = json.loads((folder / RESULTS).read_text())
    return SweepResults(folder=folder, trials=tuple(SweptRun(**row) for row in rows))


def write_on_top(target: Path, recipe: Path, overrides: Sequence[str], words: str) -> None:
    """Write a recipe with these overrides on top of another one, beginning with a comment."""
    given: Mapping[str, Any] = dict(map(parse_override, overrides))
    values, _ = merge((words, given))
    base = os.path.relpath(recipe.absolute(), target.parent.absolute())
    target.write_text(f"# {words}\n{dump_yaml({'base': base, **values}, sort_keys=False)}")


def failure_in(log: Path, code: int) -> str:
    """Return what the log of a run that failed says: its error, or else its last line."""
    lines = log.read_text(errors="replace").splitlines() or [f"code {code}"]
    told = [line for line in lines if line.startswith("error: ")] or lines
    return told[-1].removeprefix("error: ")
