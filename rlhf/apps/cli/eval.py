"""`rlhf eval` measures a checkpoint's mean reward on a recipe's evaluation sets."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rlhf.apps.failures import reporting_failures
from rlhf.cluster.supervisor import supervise
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.resolve import check_evaluates, located, recipe_of_run
from rlhf.trainer.checkpoint import model_folder


def run_eval(checkpoint: Path, recipe: Path | None = None, overrides: Sequence[str] = ()) -> int:
    """Print the evaluation as one JSON object: the evaluated model's folder, the first set's values, and under `sets`
    the values of all sets. Without a `recipe` it is that of the checkpoint's run."""
    recipe = recipe or recipe_of_run(checkpoint)
    loaded = located(load_recipe(recipe, overrides)).recipe
    check_evaluates(loaded, str(recipe))
    model = model_folder(checkpoint)

    def run() -> int:
        from rlhf.controller.inference import evaluate_model

        evaluation = evaluate_model(loaded, model, partial(print, file=sys.stderr))
        print(
            json.dumps(
                {
                    "checkpoint": model,
                    "reward": evaluation.reward,
                    "problems": evaluation.problems,
                    "distinct_answers": evaluation.distinct_answers,
                    "sets": {found.name: {"problems": found.problems, **found.metrics} for found in evaluation.sets},
                }
            )
        )
        return 0

    return supervise(reporting_failures(run))
