"""`rlhf translate`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf import commands


def translate(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of TRL, verl or OpenRLHF.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file for the recipe.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that train, where CONFIG does not say (TRL).")] = None,
) -> None:
    """Translate TRL's GRPOConfig, verl's or OpenRLHF's arguments into a recipe, and say what became of each setting."""
    raise typer.Exit(commands.translation.run_translate(configuration, output, gpus))
