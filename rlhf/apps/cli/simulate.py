"""`rlhf simulate`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf.apps import cli as commands
from rlhf.apps.arguments import Overrides, RecipeFile


def simulate(
    recipe: RecipeFile,
    overrides: Overrides = None,
    gpus: Annotated[str | None, typer.Option(metavar="8xH100", help="GPUs of a node, as for `rlhf plan`.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of such nodes.")] = 1,
    engines: Annotated[int | None, typer.Option(min=1, help="Number of engines, instead of the recipe's.")] = None,
    run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Run folder with lengths and durations to use.")
    ] = None,
    reply_tokens: Annotated[
        int | None, typer.Option(min=1, help="Mean length of replies, long-tailed; default: their limit. Not with RUN.")
    ] = None,
    stragglers: Annotated[
        str, typer.Option(metavar="SHARE,FACTOR", help="This share of episodes takes so many times as long.")
    ] = "0,1",
    failures: Annotated[float, typer.Option(min=0, help="How often an hour an engine fails.")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict the time of an update, and who waits for whom, by the recipe's own loop on a simulated clock."""
    given = [*(overrides or []), *([f"rollout.engines={engines}"] if engines else [])]
    code = commands.simulated.run_simulate(
        recipe, given, gpus=gpus, nodes=nodes, run=run, reply_tokens=reply_tokens, stragglers=stragglers,
        failures=failures, as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(code)
