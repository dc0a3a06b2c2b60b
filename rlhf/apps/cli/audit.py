"""`rlhf audit`: checks a run by its records."""

from __future__ import annotations

import math
from pathlib import Path

from rlhf.apps.audit.audit_run import audit_run
from rlhf.recipe.loading import load_recipe
from rlhf.runs.stored_run import read_run


def run_audit(path: Path) -> int:
    """Print a line a check. Return 1 if one fails."""
    run = read_run(path)
    earlier = [(last, load_recipe(file).recipe) for last, file in run.folder.earlier_recipes]
    recipes = [*earlier, (math.inf, load_recipe(run.folder.recipe).recipe)]
    failed = 0
    for check in audit_run(run, recipes):
        print(check.line, flush=True)
        failed += bool(check.faults)
    return int(failed > 0)
