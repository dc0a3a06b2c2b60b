"""The command line. It starts fast: a command imports its implementation when it is called."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf.commands.failures import tell
from rlhf.errors import RlhfError

app = typer.Typer(
    name="rlhf",
    help="Train language models by reinforcement learning: Ray, vLLM and DeepSpeed behind one readable loop.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file: recipes/quickstart.yaml, say.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Values that replace those of the recipe.")
]
Checkpoint = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint of a run, or a Hugging Face folder.")
]


@app.command()
def train(recipe: RecipeFile, overrides: Overrides = None) -> None:
    """Train what a recipe says, and leave a run folder."""
    from rlhf.commands.train import train as run

    raise typer.Exit(run(recipe, overrides or []))


@app.command("eval")
def evaluate(
    checkpoint: Checkpoint,
    recipe: Annotated[Path, typer.Option("--recipe", metavar="RECIPE", help="The recipe with the held-out tasks.")],
    overrides: Overrides = None,
) -> None:
    """Play a recipe's held-out tasks greedily with a checkpoint."""
    from rlhf.commands.eval import evaluate as run

    raise typer.Exit(run(checkpoint, recipe, overrides or []))


@app.command()
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Argument(help="The user's message.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="Softmax temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides every draw.")] = 0,
) -> None:
    """Reply to one message with a checkpoint."""
    from rlhf.commands.generate import generate as run

    raise typer.Exit(run(checkpoint, prompt, max_tokens, temperature, seed))


@app.command()
def score(
    recipe: RecipeFile,
    rows: Annotated[Path, typer.Argument(metavar="ROWS.jsonl", help="The dataset's columns, and `response`.")],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write, instead of printing.")] = None,
) -> None:
    """Score recorded responses with a recipe's reward."""
    from rlhf.commands.score import score as run

    raise typer.Exit(run(recipe, rows, overrides or [], output))


@app.command()
def export(
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
) -> None:
    """Write a checkpoint's model as a Hugging Face folder."""
    from rlhf.commands.export import export as run

    raise typer.Exit(run(checkpoint, output))


@app.command()
def options(
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this, for instance trainer.loss.")] = "",
) -> None:
    """List every key of a recipe: type, default, meaning."""
    from rlhf.commands.options import options as run

    raise typer.Exit(run(prefix))


@app.command()
def check(recipe: RecipeFile, overrides: Overrides = None) -> None:
    """Validate a recipe; print what follows from it."""
    from rlhf.commands.check import check as run

    raise typer.Exit(run(recipe, overrides or []))


@app.command()
def doctor() -> None:
    """Look at this machine; say what to put right."""
    from rlhf.commands.doctor import doctor as run

    raise typer.Exit(run())


def main() -> None:
    """Run a command. A failure with a name is one line and its exit code; Ctrl-C is 130."""
    try:
        app()
    except RlhfError as error:
        sys.exit(tell(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left; so does the last flush
        sys.exit(128 + signal.SIGPIPE)
