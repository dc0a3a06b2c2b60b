"""Small run folders without a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RECIPE = "name: made    # file name\nkind: rl    # default\ntrainer:\n  updates: 40    # override\n"


def made_run(
    folder: Path,
    rows: Sequence[Mapping[str, float | None]],
    summary: Mapping[str, Any] | None = None,
    recipe: str = RECIPE,
) -> Path:
    """Make a run folder with these metrics, a row for each update from 1, ten seconds apart."""
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(recipe)
    lines = [{"update": update, "time": 10.0 * update} | dict(row) for update, row in enumerate(rows, 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder
