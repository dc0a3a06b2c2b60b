"""`rlhf simulate` runs a recipe's loop on a simulated clock, with durations of the plan or of a recorded run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.commands.arguments import Overrides, RecipeFile
from rlhf.errors import UserError

if TYPE_CHECKING:
    from rlhf.recipe.schema import Recipe
    from rlhf.simulation.run import Prediction
    from rlhf.simulation.workload import Setting, Trouble, Workload

COUNTED = 8
"""Updates whose means are printed."""
Predictions = Mapping[str, "Prediction"]


def simulate(
    recipe: RecipeFile,
    overrides: Overrides = None,
    gpus: Annotated[str | None, typer.Option(metavar="8xH100", help="GPUs of a node, as for `rlhf plan`.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of such nodes.")] = 1,
    engines: Annotated[int | None, typer.Option(min=1, help="Number of engines, instead of the recipe's.")] = None,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Run folder whose lengths and durations are used.")
    ] = None,
    stragglers: Annotated[
        str, typer.Option(metavar="SHARE,FACTOR", help="A share of episodes takes so many times as long: 0.01,50.")
    ] = "0,1",
    failures: Annotated[float, typer.Option(min=0, help="How often an engine fails, an hour.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the time of an update, and who waits for whom, by a recipe's loop on a simulated clock."""
    given = [*(overrides or []), *([f"rollout.engines={engines}"] if engines else [])]
    trouble = _trouble(stragglers, failures)
    raise typer.Exit(run_simulate(recipe, given, gpus=gpus, nodes=nodes, run=run, trouble=trouble, as_json=as_json))


def run_simulate(
    recipe: Path,
    overrides: Sequence[str],
    *,
    gpus: str | None,
    nodes: int,
    run: Path | None,
    trouble: Trouble,
    as_json: bool = False,
) -> int:
    """Print what the simulation says of a recipe. Raises `UserError`."""
    from rlhf.recipe.loading import load_recipe
    from rlhf.simulation.run import simulate as simulated

    loaded = load_recipe(recipe, overrides).recipe
    if not loaded.plays:
        raise UserError(f"{recipe} is of kind {loaded.kind}: only runs that play episodes are simulated")
    machine = _machine(loaded, gpus, nodes)
    if run is not None:
        lines, workloads, recorded
    ...
