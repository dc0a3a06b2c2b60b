"""Command-line arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipeFile = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="Recipe file, for instance recipes/quickstart.yaml.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that replace those of the recipe.")
]
