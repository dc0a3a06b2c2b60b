"""`rlhf eval` measures a checkpoint's mean reward on a recipe's evaluation sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlhf.cluster.supervisor import supervise
from rlhf.commands.failures import reporting_failures
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.resolve import located
from rlhf.trainer.checkpoint import model_folder

ABOVE = 3
"""Folders between a run's and its checkpoint's model."""


def run_eval(checkpoint: str, recipe: Path | None = None, overrides: Sequence[str] = ()) -> int:
    """Print the evaluation as one JSON object: the first set's values, and under `sets` the values of all sets. Without
    a `recipe` it is that of the checkpoint's run."""
    recipe = recipe or recipe_of_run(Path(checkpoint))
    loaded = located(load_recipe(recipe, overrides)).recipe
    if loaded.kind in ("reward_model", "preference"):
        raise ConfigError(
            f"{recipe} is of kind: {loaded.kind}, whose held-out pairs are judged while it trains; rlhf eval plays "
            "episodes, for instance those of a recipe of kind: rl"
        )
    if loaded.data.eval is None:
        raise ConfigError(f"{recipe} has no data.eval: there is nothing to evaluate on")
    model = model_folder(checkpoint)

    def run() -> int:
        from rlhf.controller.inference import evaluate_model

        evaluation = evaluate_model(loaded, model, partial(print, file=sys.stderr))
        print(
            json.dumps(
                {
                    "checkpoint": checkpoint,
                    "reward": evaluation.reward,
                    "problems": evaluation.problems,
                    "distinct_answers": evaluation.distinct_answers,
                    "sets": {found.name: {"problems": found.problems, **found.metrics} for found in evaluation.sets},
                }
            )
        )
        return 0

    return supervise(reporting_failures(run))


def recipe_of_run(checkpoint: Path) -> Path:
    """Return the recipe of the run that a checkpoint belongs to: beside it, or in the folders above. Raises
    `ConfigError`."""
    folders = (checkpoint, *checkpoint.absolute().parents[:ABOVE])
    found = next((folder / "recipe.yaml" for folder in folders if (folder / "recipe.yaml").is_file()), None)
    if found is None:
        raise ConfigError(f"{checkpoint} is not in a run folder with a recipe.yaml; give the recipe: --recipe RECIPE")
    return found
