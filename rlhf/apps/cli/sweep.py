"""`rlhf sweep`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf.apps import cli as commands
from rlhf.apps.arguments import RecipeFile


def sweep_recipe(
    recipe: RecipeFile,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=SEARCH|VALUE", help="Searched: [a,b,…], log(low,high), uniform(low,high), int(low,high)."
        ),
    ] = None,
    goal: Annotated[
        str, typer.Option(help="reward, or speed: without KEYs, the settings that decide how fast the recipe is.")
    ] = "reward",
    algorithm: Annotated[
        str | None, typer.Option(help="grid, random, asha, pbt or optuna [default: grid for lists, else random].")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Trials, unless all combinations of lists are tried.")] = 8,
    metric: Annotated[
        str | None, typer.Option(help="What is compared [default: the held-out reward, or the training reward].")
    ] = None,
    mode: Annotated[str, typer.Option(help="Whether the largest (max) or smallest (min) is best.")] = "max",
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Folder of the sweep [default: runs/NAME.sweep].")
    ] = None,
) -> None:
    """Train a recipe with many values and write the best as a recipe. The same command continues later."""
    code = commands.sweep_output.run_sweep(
        recipe, words or [], goal=goal, algorithm=algorithm, samples=samples, metric=metric, mode=mode, folder=folder
    )
    raise typer.Exit(code)
