"""A sweep from Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.apps.sweeps.request import checked_sweep
from rlhf.apps.sweeps.results import SweepResults, read_results
from rlhf.apps.sweeps.space import search_of
from rlhf.errors import TrialFailed
from rlhf.recipe.from_python import recipe_from_python
from rlhf.recipe.shipped import recipe_file
from rlhf.runs.resolved import resolved_yaml


def sweep(
    recipe: str | Path | Mapping[str, Any], space: Mapping[str, str | Sequence[Any]], *overrides: str, **asked: Any
) -> SweepResults:
    """Sweep a recipe, as `rlhf train` names it or a mapping, by `rlhf sweep` in a separate process.

    The `space` maps dotted keys to lists or texts such as "log(1e-6,1e-4)". `asked` are the command's options:
    goal, algorithm, samples, metric, mode, folder. Raises `UserError` for what cannot run, and `TrialFailed` if no
    trial has a score.

    >>> sweep("recipes/quickstart.yaml", {"trainer.optimizer.learning_rate": [1e-4, 3e-4]}).best
    """
    searches = {key: search_of(key, given) for key, given in space.items()}
    if isinstance(recipe, Mapping):
        loaded = recipe_from_python(recipe)
        path = Path("runs") / f"{loaded.recipe.name}.sweep.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(resolved_yaml(loaded.recipe, loaded.origins))
    else:
        path = recipe_file(recipe)
    found = checked_sweep(path, searches, overrides, **asked)
    words = [*(f"{key}={search}" for key, search in searches.items()), *overrides]
    options = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    code = subprocess.run([sys.executable, "-m", "rlhf", "sweep", str(path), *words, *options]).returncode
    if code:
        raise TrialFailed(f"the sweep in {found.folder} ended with code {code}")
    return read_results(found.folder)
