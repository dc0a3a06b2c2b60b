"""The recipes in the package by name, and the file that a name means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "recipes"
"""Next to the package `rlhf`, in a clone and in an installed wheel."""
OWN = "recipe.yaml"
"""The recipe of a folder."""


def shipped_recipes() -> Mapping[str, Path]:
    """Return the shipped recipes by name: `quickstart`, `preference_ppo/1_sft`."""
    files = sorted((*RECIPES.glob("*.yaml"), *RECIPES.glob("*/*.yaml")))
    return {file.relative_to(RECIPES).with_suffix("").as_posix(): file for file in files}


def recipe_file(name: str | Path) -> Path:
    """Return the file that a user means by a path, by a folder with `recipe.yaml`, or by the name of a shipped recipe.

    An existing path comes first; any other text is returned unchanged.
    """
    path = Path(name).expanduser()
    if (path / OWN).is_file():
        return path / OWN
    return path if path.is_file() else shipped_recipes().get(str(name), path)
