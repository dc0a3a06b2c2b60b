"""The request for a sweep, checked before anything starts."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlhf.apps.sweeps.space import FORMS, Space, as_words
from rlhf.apps.sweeps.speed import SPEED, short_updates
from rlhf.controller.resume import DATA_KEYS
from rlhf.durable import write_durably
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.runs.metric_catalogue import find_metric, nearest_metric

ALGORITHMS = ("grid", "random", "asha", "pbt", "optuna")
FIRST_LOOK, REDUCTION, MOST_CHANGES = 8, 4, 8
"""ASHA looks first after an eighth of the updates, and continues the best quarter, as in arXiv 1810.05934. PBT changes
values at most this many times."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A checked sweep. `samples` trials are drawn, unless all combinations of lists are tried. Without a `space` the
    settings that decide speed are tried."""

    recipe: Path
    overrides: tuple[str, ...]
    space: Space
    algorithm: str
    samples: int
    metric: str | None
    mode: str
    folder: Path

    @cached_property
    def loaded(self) -> Recipe:
        """The recipe without the values that are searched."""
        return located(load_recipe(self.recipe, self.overrides)).recipe

    @property
    def updates(self) -> int:
        """The budget of a trial."""
        return short_updates(self.loaded) if self.metric == SPEED else self.loaded.trainer.updates

    @property
    def looks(self) -> list[int]:
        """The updates after which ASHA ends trials."""
        found = [max(1, self.updates // FIRST_LOOK)]
        while found[-1] * REDUCTION < self.updates:
            found.append(found[-1] * REDUCTION)
        return found

    @property
    def interval(self) -> int:
        """The updates after which PBT changes values, at evaluations. Each leaves a checkpoint."""
        every = self.loaded.trainer.eval_every or 1
        return every * math.ceil(self.updates / (MOST_CHANGES * every))

    @property
    def has_only_lists(self) -> bool:
        return all(search.form == "list" for search in self.space.values())

    @property
    def whole_grid(self) -> bool:
        """Whether every combination is tried."""
        return bool(self.space) and self.has_only_lists and self.algorithm in ("grid", "asha")

    @property
    def trials(self) -> int:
        """The number of trials."""
        return math.prod(len(search.values) for search in self.space.values()) if self.whole_grid else self.samples

    @property
    def identity(self) -> dict[str, Any]:
        """What distinguishes sweeps."""
        recipe = f"{self.loaded.name} {hashlib.sha256(self.loaded.model_dump_json().encode()).hexdigest()[:12]}"
        asked = {"algorithm": self.algorithm, "samples": self.samples, "metric": self.metric, "mode": self.mode}
        return {"recipe": recipe, "space": {key: str(search) for key, search in self.space.items()}} | asked


def checked_sweep(
    recipe: Path,
    space: Space,
    overrides: Sequence[str] = (),
    *,
    goal: str = "reward",
    algorithm: str | None = None,
    samples: int = 8,
    metric: str | None = None,
    mode: str = "max",
    folder: Path | None = None,
) -> Sweep:
    """Return the sweep, by default a grid if there are only lists, and else random values. Raises `UserError` for keys,
    values and a metric that no run has, for a recipe that cannot run here, and for a folder of another sweep."""
    place = folder or Path("runs") / f"{load_recipe(recipe, overrides).recipe.name}.sweep"
    chosen = algorithm or ("grid" if all(search.form == "list" for search in space.values()) else "random")
    if goal == "speed":
        metric, mode = SPEED, "min"
    sweep = Sweep(
        recipe=recipe, overrides=tuple(overrides), space=space, algorithm=chosen, samples=samples, metric=metric,
        mode=mode, folder=place,
    )  # fmt: skip
    for key, search in space.items():
        for value in search.values:
            load_recipe(recipe, [*overrides, *as_words({key: value})])
        if chosen == "pbt" and any(key == fixed or key.startswith(f"{fixed}.") for fixed in DATA_KEYS):
            raise UserError(f"{key}: pbt changes values during a run, which keeps its data; take another --algorithm")
    if goal not in ("reward", "speed"):
        raise UserError("--goal is reward or speed")
    for problem in problems(sweep):
        raise UserError(problem)
    preflight(sweep.loaded)
    return sweep


def problems(sweep: Sweep) -> Iterator[str]:
    """Yield what keeps a sweep from running, except for its recipe."""
    if sweep.algorithm not in ALGORITHMS or sweep.mode not in ("max", "min"):
        yield f"--algorithm is one of {', '.join(ALGORITHMS)}, and --mode max or min"
    if sweep.algorithm == "grid" and not sweep.has_only_lists:
        yield "a grid tries the values of lists: give [a,b,…], or another --algorithm"
    if not sweep.space and sweep.metric != SPEED:
        yield f"nothing to search: give values to a key, KEY={FORMS}"
    if sweep.metric == SPEED and sweep.algorithm == "pbt":
        yield "pbt runs trials together, and trials for speed run alone; take another --algorithm"
    if sweep.metric is None and not sweep.loaded.plays:
        yield f"a run of kind {sweep.loaded.kind} has no reward: give --metric and --mode"
    if sweep.metric and sweep.metric != SPEED and not find_metric(sweep.metric):
        meant = nearest_metric(sweep.metric)
        words = f"did you mean {meant!r}?" if meant else "`rlhf explain` lists them"
        yield f"no run has the metric {sweep.metric!r}; {words}"
    if sweep.loaded.cluster.address:
        yield "every trial starts its own Ray: leave out cluster.address"
    file = sweep.folder / "sweep.json"
    if not file.exists() and sweep.folder.exists() and any(sweep.folder.iterdir()):
        yield f"{sweep.folder} holds something else than a sweep: choose another --folder"
    before = json.loads(file.read_text()) if file.exists() else sweep.identity
    for name, now in sweep.identity.items():
        if (was := before.get(name)) != now:
            yield f"{sweep.folder} holds a sweep with another {name} ({was}, now {now}): choose another --folder"


@contextmanager
def owned(sweep: Sweep) -> Iterator[None]:
    """Hold the folder. Raises `UserError` while another process sweeps there."""
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with (sweep.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{sweep.folder}: another process runs this sweep") from None
        write_durably(sweep.folder / "sweep.json", json.dumps(sweep.identity, indent=1) + "\n")
        yield
