"""`rlhf simulate` runs a recipe's loop on a simulated clock, with durations of its plan or of a recorded run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rlhf.apps.cli.plan import planned
from rlhf.cluster.roles import table
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.placement import PlacementTarget
from rlhf.recipe.planning.estimate import placement_problem
from rlhf.recipe.planning.machines import Machine, machine_here_or
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.recipe.simulation.recipe import predicted_from_plan, predicted_from_run
from rlhf.recipe.simulation.recorded import RecordedTimes
from rlhf.recipe.simulation.run import Prediction, Trouble
from rlhf.recipe.workers import roles_of


def run_simulate(
    recipe: Path,
    overrides: Sequence[str],
    *,
    gpus: str | None,
    nodes: int,
    run: Path | None,
    reply_tokens: int | None,
    stragglers: str,
    failures: float,
    as_json: bool,
) -> int:
    """Print what the simulation predicts. Raises `UserError`."""
    machine = machine_here_or(gpus, nodes)
    loaded = located(load_recipe(recipe, overrides), target=PlacementTarget(machine=machine, must_fit=False)).recipe
    check_simulated(loaded, machine)
    trouble, cores, first = trouble_of(stragglers, failures), float(machine.nodes * machine.cores), list[str]()
    if run is not None:
        prediction, own, recorded = predicted_from_run(loaded, run, cores, trouble)
        found: Mapping[str, Prediction] = {"predicted": prediction}
        first = recorded_lines(recorded, own)
    else:
        estimate, _ = planned(loaded, machine)
        found = predicted_from_plan(loaded, estimate, reply_tokens, cores, trouble)
    if as_json:
        print(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1))
    else:
        print("\n".join([*first, *prediction_table(found)]))
    return 0


def check_simulated(recipe: Recipe, machine: Machine) -> None:
    """Raise `UserError` unless the recipe plays episodes and the machine has its workers' places."""
    if not recipe.plays:
        raise UserError(f"{recipe.name} is of kind {recipe.kind}: only runs that play episodes are simulated")
    if machine.card and (problem := placement_problem(roles_of(recipe), machine)):
        raise UserError(problem)


def trouble_of(stragglers: str, failures: float) -> Trouble:
    """Read the options. Raises `UserError`."""
    try:
        share, factor = map(float, stragglers.split(","))
    except ValueError:
        share, factor = -1.0, 1.0
    if not (0 <= share <= 1 and factor >= 1):
        raise UserError(f"--stragglers {stragglers} is no share and factor; give for instance 0.01,50")
    return Trouble(straggler_share=share, straggler_factor=factor, failures_per_hour=failures)


def recorded_lines(recorded: RecordedTimes, own: Prediction) -> list[str]:
    """Describe the durations of a recorded run, and how well its own update is predicted by them."""
    durations, off = recorded.durations, own.update_seconds / recorded.update_seconds - 1
    return [
        f"durations  a step {1e3 * durations.step:.2g} ms and {1e3 * durations.sequence:.2g} ms a sequence, a prompt's "
        f"token {1e3 * durations.prompt_token:.2g} ms; training {1e3 * durations.train_token:.2g} ms a token, weight "
        f"sync {durations.weight_sync:.2g} s, rest {durations.rest:.2g} s",
        f"check      an update of the recorded run took {recorded.update_seconds:.2f} s; simulated with its own "
        f"settings {own.update_seconds:.2f} s ({off:+.0%})",
        "",
    ]


def prediction_table(found: Mapping[str, Prediction]) -> list[str]:
    """Make a table with a column for each prediction."""
    rows: dict[str, Callable[[Prediction], str]] = {
        "update, s": lambda one: f"{one.update_seconds:.2f}",
        "samples/s": lambda one: f"{one.samples_per_second:.1f}",
        "tokens/s": lambda one: f"{one.tokens_per_second:,.0f}",
        "engines work": lambda one: f"{one.engines_busy:.0%}",
        "sequences an engine": lambda one: f"{one.running:.0f}",
        "learner trains": lambda one: f"{one.learner_busy:.0%}",
        "learner waits for groups": lambda one: f"{one.learner_waits:.0%}",
        "staleness, mean": lambda one: f"{one.staleness_mean:.2f}",
        "staleness, largest": lambda one: f"{one.staleness_max}",
        "engines lost": lambda one: f"{one.engines_lost}",
        "episodes lost": lambda one: f"{one.episodes_lost}",
    }
    cells = [("", *found), *((name, *map(shown, found.values())) for name, shown in rows.items())]
    return table(cells, text_columns=1).splitlines()
