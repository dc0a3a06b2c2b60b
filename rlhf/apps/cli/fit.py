"""`rlhf fit`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf.apps import cli as commands
from rlhf.apps.arguments import Overrides, RecipeFile


def fit(
    recipe: RecipeFile,
    overrides: Overrides = None,
    trials: Annotated[int, typer.Option(min=1, help="Most trials.")] = 10,
    minutes: Annotated[float, typer.Option(min=0, help="No trial begins after so many minutes.")] = 60.0,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder of the trials [default: runs/NAME.fit].")
    ] = None,
) -> None:
    """Find the numbers of engines, ranks, micro-batch tokens and sequences that are quickest here, in short trials."""
    raise typer.Exit(commands.trials.run_fit(recipe, overrides or [], trials=trials, minutes=minutes, folder=folder))
