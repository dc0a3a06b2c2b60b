"""What a sweep is asked for, checked before anything starts."""

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

from rlhf.controller.resume import DATA_KEYS
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.runs.durable import write_durably
from rlhf.runs.metric_catalogue import find_metric, nearest_metric
from rlhf.sweeps.space import OneOf, Space, as_words

ALGORITHMS = ("grid", "random", "asha", "pbt", "optuna")
FIRST_LOOK, REDUCTION = 8, 4
"""ASHA looks first after an eighth of the updates, and lets the best quarter go on, as in arXiv 1810.05934."""
LOOKS = 4
"""How often PBT changes values in a recipe without evaluations."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A checked sweep. `samples` trials are drawn, unless all combinations of lists are tried."""

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
        return self.loaded.trainer.updates

    @property
    def looks(self) -> list[int]:
        """The updates after which ASHA ends trials."""
        found = [max(1, self.updates // FIRST_LOOK)]
        while found[-1] * REDUCTION < self.updates:
            found.append(found[-1] * REDUCTION)
        return found

    @property
    def interval(self) -> int:
        """The updates after which PBT changes values."""
        return self.loaded.trainer.eval_every or max(1, self.updates // LOOKS)

    @property
    def whole_grid(self) -> bool:
        """Whether every combination is tried."""
        lists = all(isinstance(search, OneOf) for search in self.space.values())
        return lists and self.algorithm in ("grid", "asha")

    @property
    def trials(self) -> int:
        """The number of trials."""
        return math.prod(len(search.examples) for search in self.space.values()) if self.whole_grid else self.samples

    @property
    def identity(self) -> dict[str, Any]:
        """What tells sweeps apart."""
        return {
            "recipe": f"{self.loaded.name} {hashlib.sha256(self.loaded.model_dump_json().encode()).hexdigest()[:12]}",
            "space": {key: str(search) for key, search in self.space.items()},
            "algorithm": self.algorithm,
            "samples": self.samples,
            "metric": self.metric,
            "mode": self.mode,
        }


def checked_sweep(
    recipe: Path,
    space: Space,
    overrides: Sequence[str] = (),
    *,
    algorithm: str | None = None,
    samples: int = 8,
    metric: str | None = None,
    mode: str = "max",
    folder: Path | None = None,
) -> Sweep:
    """Return the sweep, by default a grid if there are only lists, and else random values. Raises `UserError` for what
    cannot run, and for a folder of another sweep."""
    lists = all(isinstance(search, OneOf) for search in space.values())
    chosen = algorithm or ("grid" if lists else "random")
    if chosen not in ALGORITHMS or mode not in ("max", "min"):
        raise UserError(f"--algorithm is one of {', '.join(ALGORITHMS)}, --mode max or min (got {chosen}, {mode})")
    if chosen == "grid" and not lists:
        raise UserError("a grid tries the values of lists: give [a,b,…], or another --algorithm")
    name = load_recipe(recipe, overrides).recipe.name
    sweep = Sweep(
        recipe=recipe, overrides=tuple(overrides), space=space, algorithm=chosen, samples=samples, metric=metric,
        mode=mode, folder=folder or Path("runs") / f"{name}.sweep",
    )  # fmt: skip
    check_sweep(sweep)
    return sweep


def check_sweep(sweep: Sweep) -> None:
    """Raise `UserError` for keys, values, a metric or a folder that this sweep cannot have."""
    for key, search in sweep.space.items():
        for value in search.examples:
            load_recipe(sweep.recipe, [*sweep.overrides, *as_words({key: value})])
        if sweep.algorithm == "pbt" and any(key == fixed or key.startswith(f"{fixed}.") for fixed in DATA_KEYS):
            raise UserError(f"{key}: pbt changes values during a run, which keeps its data; take another --algorithm")
    if sweep.metric is None and not sweep.loaded.plays:
        raise UserError(f"a run of kind {sweep.loaded.kind} has no reward: give --metric and --mode")
    if sweep.metric and not find_metric(sweep.metric):
        meant = nearest_metric(sweep.metric)
        raise UserError(
            f"no run has the metric {sweep.metric!r}; "
            + (f"did you mean {meant!r}?" if meant else "`rlhf explain` lists them")
        )
    if sweep.loaded.cluster.address:
        raise UserError("every trial starts its own Ray: leave out cluster.address")
    preflight(sweep.loaded)
    file = sweep.folder / "sweep.json"
    if not file.exists() and sweep.folder.exists() and any(sweep.folder.iterdir()):
        raise UserError(f"{sweep.folder} holds something else than a sweep: choose another --folder")
    before = json.loads(file.read_text()) if file.exists() else sweep.identity
    for name, now in sweep.identity.items():
        if before.get(name) != now:
            raise UserError(
                f"{sweep.folder} holds a sweep with another {name} ({before.get(name)}, now {now}): choose another "
                "--folder"
            )


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
