"""Command-line arguments that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlhf.recipe.schema import Recipe


def recipe_named(name: str) -> Path:
    """Return the recipe file that an argument means."""
    from rlhf.recipe.shipped import recipe_file

    return recipe_file(name)


def recipe_if_named(name: str, overrides: Sequence[str]) -> Recipe | None:
    """Return the recipe that `rlhf train` finds by a name; None for any other name. Raises `ConfigError`."""
    from rlhf.recipe.loading import load_recipe

    file = recipe_named(name)
    return load_recipe(file, overrides).recipe if file.is_file() or file.suffix in (".yaml", ".yml") else None


def run_named(name: str) -> Path:
    """Return the folder that an argument for a run or a checkpoint means: of a project that of its run."""
    from rlhf.recipe.loading import load_recipe

    path = Path(name)
    return load_recipe(recipe_named(name)).recipe.run_dir if is_project(path) else path


def is_project(folder: Path) -> bool:
    """Return whether a folder has a recipe and is not a run's, which has its own."""
    of_a_run = ("logs", "metrics.jsonl")
    return (folder / "recipe.yaml").is_file() and not any((folder / name).exists() for name in of_a_run)


def recipes_that_begin(typed: str) -> list[str]:
    """Return the shipped recipes for the shell to complete; it completes the names of files itself."""
    from rlhf.recipe.shipped import shipped_recipes

    return [name for name in shipped_recipes() if name.startswith(typed)]


RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE",
        help="Recipe file, a project's folder, or the name of a shipped recipe: quickstart.",
        parser=recipe_named,
        autocompletion=recipes_that_begin,
    ),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run folder, or the project that was trained.", parser=run_named)
]
Checkpoint = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT",
        help="Run folder, checkpoint of a run, Hugging Face folder, or the project that was trained.",
        parser=run_named,
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that replace those of the recipe.")
]
