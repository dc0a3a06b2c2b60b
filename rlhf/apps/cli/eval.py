"""`rlhf eval` measures a checkpoint's mean reward on a recipe's evaluation sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlhf.apps.failures import reporting_failures
from rlhf.cluster.supervisor import supervise
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.resolve import check_evaluates, located, recipe_of_run
from rlhf.runs.payoff import elo_ratings, win_rate
from rlhf.trainer.checkpoint import adapter_folder


def run_eval(
    checkpoint: Path, recipe: Path | None = None, against: Sequence[str] = (), overrides: Sequence[str] = ()
) -> int:
    """Print the evaluation as one JSON object: the evaluated model's folder, the first set's values, and under `sets`
    the values of all sets. Without a `recipe` it is that of the checkpoint's run. If `against` names
    other adapters, a tournament is played instead, and the object has the win rates of every pair and Elo ratings."""
    path, _, policy = str(checkpoint).partition(":")
    if policy and not against:
        raise ConfigError(
            f"{checkpoint} is one policy; evaluate {path}, whose policies play together, or --against others"
        )
    recipe = recipe or recipe_of_run(Path(path))
    own = ["policies={}", "roles={}", "league=null"]
    if not against:  # those with which the run began may be gone
        names = load_recipe(recipe, overrides).recipe.policies
        own = [f"policies.{name}.adapter={json.dumps(adapter_folder(f'{path}:{name}'))}" for name in names]
    loaded = located(load_recipe(recipe, [*overrides, *own])).recipe
    check_evaluates(loaded, str(recipe))

    def run() -> int:
        from rlhf.controller.inference import evaluate_model, play_tournament
        from rlhf.controller.start_model import model_below, played_from

        tell = partial(print, file=sys.stderr)
        if against:
            results, as_first = play_tournament(loaded, model_below(loaded), [str(checkpoint), *against], tell)
            rates = {one: {other: win_rate(results, one, other) for other in played} for one, played in results.items()}
            print(json.dumps({"elo": elo_ratings(results), "win_rates": rates, "win_rates_as_first": as_first}))
            return 0
        model, playing = played_from(str(checkpoint), loaded)
        evaluation = evaluate_model(playing, model, tell)
        print(
            json.dumps(
                {
                    "checkpoint": str(checkpoint) if loaded.policies else model,
                    "reward": evaluation.reward,
                    "problems": evaluation.problems,
                    "distinct_answers": evaluation.distinct_answers,
                    "sets": {found.name: {"problems": found.problems, **found.metrics} for found in evaluation.sets},
                }
            )
        )
        return 0

    return supervise(reporting_failures(run))
