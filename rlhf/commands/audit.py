"""`rlhf audit`: checks a run by its records."""

from __future__ import annotations

from pathlib import Path

from rlhf.controller.audit import audit_run
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from rlhf.runs.stored_run import read_run


def run_audit(path: Path) -> int:
    """Print a line a check. Return 1 if one fails."""
    run = read_run(path)
    recipe = load_recipe(run.folder.recipe).recipe
    if recipe.kind != "rl":
        raise UserError(f"{path} is a run of kind {recipe.kind}: only runs of kind rl have samples to account for")
    failed = 0
    for check in audit_run(run, recipe):
        print(check.line, flush=True)
        failed += bool(check.faults)
    return int(failed > 0)
