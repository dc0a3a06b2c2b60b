"""`rlhf engines`: lists, adds and removes engines of a running run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf.apps.arguments import RunArgument
from rlhf.runs.engine_requests import EnginesRequest, ask_run

START_FACTOR = 2
"""A start may have to wait for a place in the cluster first."""

engines = typer.Typer(no_args_is_help=True, help="List, add or remove engines of a running run.")


@engines.command("list")
def list_engines(run: RunArgument) -> None:
    """Print the engines that serve."""
    _ask(run, EnginesRequest(do="list"))


@engines.command("add")
def add_engines(run: RunArgument, count: Annotated[int, typer.Argument(metavar="N", min=1)] = 1) -> None:
    """Start N more engines, where the cluster has room; each serves once it has the current weights."""
    _ask(run, EnginesRequest(do="add", count=count))


@engines.command("remove")
def remove_engine(run: RunArgument, name: Annotated[str, typer.Argument(metavar="ID", help="`engine-1`")]) -> None:
    """Remove one engine; its requests go on at the others."""
    _ask(run, EnginesRequest(do="remove", name=name))


def _ask(path: Path, request: EnginesRequest) -> None:
    from rlhf.recipe.loading import load_recipe
    from rlhf.runs.stored_run import read_run

    run = read_run(path)
    rollout = load_recipe(run.folder.recipe).recipe.rollout
    seconds = START_FACTOR * max(request.count, 1) * rollout.start_timeout_seconds
    for name in ask_run(run.folder.engines, request, seconds).serving:
        print(name)
