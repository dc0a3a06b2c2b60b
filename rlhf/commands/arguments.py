"""Command-line arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def recipe_named(name: str) -> Path:
    """Return the recipe file that an argument means."""
    from rlhf.recipe.shipped import recipe_file

    return recipe_file(name)


def is_project(folder: Path) -> bool:
    """Return whether a folder has a recipe and is not a run's, which has its own."""
    return (folder / "recipe.yaml").is_file() and not (folder / "logs").is_dir()


def recipes_that_begin(typed: str) -> list[str]:
    """Return the shipped recipes for the shell to complete; it completes the names of files itself."""
    from rlhf.recipe.shipped import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(typed)]


RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe file, a folder with recipe.yaml, or the name of a shipped recipe: quickstart.",
        parser=recipe_named,
        autocompletion=recipes_that_begin,
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that replace those of the recipe.")
]
