"""`rlhf recipes`: the recipes that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

recipes = typer.Typer(no_args_is_help=True, help="List the recipes that come with the package, or copy one.")


@recipes.command("list")
def list_recipes() -> None:
    """Print the names of all recipes, each with what it trains."""
    from rlhf.recipe.shipped import shipped_recipes

    for name, file in shipped_recipes().items():  # the comment at the top of a recipe begins with a headline
        print(f"{name:<32}{file.read_text().partition(chr(10))[0].removeprefix('#').strip()}")


@recipes.command("copy")
def copy_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `rlhf recipes list`.")],
    to: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="New file [default: the recipe's name, in this folder].")
    ] = None,
) -> None:
    """Copy a recipe, so that you can change it. A `base` in it still names the shipped recipe."""
    from rlhf.errors import UserError
    from rlhf.recipe.shipped import shipped_recipes

    if (source := shipped_recipes().get(name)) is None:
        raise UserError(f"there is no recipe {name!r}; `rlhf recipes list` prints all names")
    target = to or Path(source.name)
    try:
        with target.open("x") as copy:
            copy.write(source.read_text())
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from None
    print(f"wrote {target}; train it with: rlhf train {target}")
