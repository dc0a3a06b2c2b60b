"""The command line: the signature of every command. What a command does is imported when it is called, so that all of
them start fast."""

from __future__ import annotations

import getpass
import importlib
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from rlhf.apps.arguments import Checkpoint, Overrides, RecipeFile, RunArgument, is_project, recipe_named
from rlhf.apps.cli.episodes import episodes
from rlhf.apps.cli.kubernetes import kubernetes
from rlhf.apps.cli.node import node
from rlhf.apps.cli.recipes import recipes
from rlhf.apps.cli.serve_sandbox import sandbox
from rlhf.apps.cli.slurm import slurm
from rlhf.apps.cli.view import view
from rlhf.apps.failures import print_failure
from rlhf.apps.server_options import Certificate, Key, LimitTexts, Names
from rlhf.cluster.console import lasting
from rlhf.errors import RlhfError, UserError

GROUPS = {
    "Train": "init recipes options check plan train sweep eval generate score reward",
    "Look": "view top episodes report explain audit",
    "Bring and take away": "translate export",
    "Serve": "serve env",
    "Machines and clusters": "doctor drill node slurm kubernetes",
}


class GroupedCommands(TyperGroup):
    """Lists the commands by `GROUPS`, each with the first sentence of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit=80)) for name in names.split()])


app = typer.Typer(
    name="rlhf",
    cls=GroupedCommands,
    help="Train language models by reinforcement learning: Ray, vLLM and DeepSpeed behind one readable loop.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

serve = typer.Typer(no_args_is_help=True, help="Serve an environment, a reward, a sandbox or a policy over HTTP.")
env = typer.Typer(no_args_is_help=True, help="Test environments.")
rewards = typer.Typer(no_args_is_help=True, help="Test rewards.")
app.add_typer(serve, name="serve")
app.add_typer(env, name="env")
app.add_typer(recipes, name="recipes")
app.add_typer(rewards, name="reward")
app.command()(episodes)
app.command()(view)
app.command()(kubernetes)
app.command()(node)
app.command()(slurm)
serve.command()(sandbox)

RewardName = Annotated[
    str, typer.Argument(metavar="REWARD", help="Recipe, as for `train`; a kind; or module:function.")
]
TokenEnv = Annotated[str | None, typer.Option(help="Environment variable with the bearer token.")]


def command(group: typer.Typer, module: str = "") -> Callable[[Callable[..., None]], None]:
    """Make a command of a function that has only its signature and help: `run_NAME` of the module NAME, by default the
    function's name, gets the values that are given, and returns the exit code. The last word of NAME calls it."""

    def declared(signature: Callable[..., None]) -> None:
        name = module or signature.__name__

        @group.command(name.rpartition("_")[2])
        @wraps(signature)
        def call(**values: Any) -> None:
            run = vars(importlib.import_module(f"rlhf.apps.cli.{name}"))[f"run_{name}"]
            raise typer.Exit(run(**{key: value for key, value in values.items() if value is not None}))

    return declared


@command(app)
def train(
    recipe: RecipeFile,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint in the run folder.")
    ] = False,
    start_over: Annotated[
        bool,
        typer.Option("--start-over", help="With --resume: begin again if the folder has only damaged checkpoints."),
    ] = False,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Join this Ray cluster, or `auto` (sets cluster.address).")
    ] = None,
    rendezvous: Annotated[Path | None, typer.Option(metavar="FILE", help="Join the cluster of `rlhf node`.")] = None,
) -> None:
    """Train the model that a recipe describes."""


@command(app)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder; its name is the run's.")],
    kind: Annotated[
        str,
        typer.Option(
            help="What you will write yourself: reward, environment, tools, agent or preference.",
            autocompletion=lambda: ["reward", "environment", "tools", "agent", "preference"],
        ),
    ] = "reward",
) -> None:
    """Make a project of your own. It has a recipe that learns at once, rows, a reward or environment, and its test."""


@command(app)
def plan(
    recipe: RecipeFile,
    overrides: Overrides = None,
    gpus: Annotated[
        str | None, typer.Option(metavar="8xH100", help="GPUs of a node: a card's name or memory (8x80GB).")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Number of such nodes.")] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of a node; default: 12 a GPU, or this machine's.")
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(min=1, metavar="GIB", help="Host memory of a node; default: 128 a GPU, or this machine's."),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="config.json of the recipe's model.")] = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, in bytes and tokens.")] = False,
) -> None:
    """Predict the memory that a recipe needs. Also find the largest micro-batch that fits."""


@command(app, "eval")
def evaluate(
    checkpoint: Checkpoint,
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE", parser=recipe_named, help="The recipe with the held-out tasks [default: the run's]."
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADAPTER", help="Play a tournament with this adapter too: a folder, RUN, or RUN:POLICY. Repeat it."
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Evaluate a checkpoint on the held-out tasks of a recipe. By default that of its run."""


@command(app)
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Argument(help="The user's message.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="Softmax temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    image: Annotated[list[Path] | None, typer.Option(help="Image file to show before the text; repeatable.")] = None,
) -> None:
    """Generate a reply to one message with a checkpoint."""


@command(app)
def score(
    recipe: RecipeFile,
    rows: Annotated[Path, typer.Argument(metavar="ROWS.jsonl", help="The dataset's columns, and `response`.")],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
    gold: Annotated[bool, typer.Option("--gold", help="Score the reference answers against themselves.")] = False,
) -> None:
    """Score recorded responses with a recipe's reward."""


@command(rewards)
def reward_check(
    reward: RewardName,
    overrides: Overrides = None,
    prompt: Annotated[str | None, typer.Option(help="The question.")] = None,
    answer: Annotated[str | None, typer.Option(help="Its answer.")] = None,
    wrong: Annotated[list[str] | None, typer.Option(help="A wrong answer; may be repeated.")] = None,
    reply: Annotated[str, typer.Option(help="How a reply states an answer.")] = "{answer}",
) -> None:
    """Score hostile replies with a reward and print those that it accepts."""


@command(app)
def export(
    checkpoint: Checkpoint,
    output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")],
    adapter: Annotated[bool, typer.Option("--adapter", help="The LoRA adapter alone, for peft.")] = False,
    ema: Annotated[bool, typer.Option("--ema", help="The average of the weights (trainer.ema_decay).")] = False,
    policy: Annotated[
        str | None, typer.Option(metavar="NAME", help="The adapter of this one of several policies.")
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None, typer.Option(help="Precision [default: the run's].")
    ] = None,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Also push it to OWNER/NAME of the Hugging Face Hub.")
    ] = None,
) -> None:
    """Export a checkpoint's model as a Hugging Face folder."""


@command(app)
def options(
    prefix: Annotated[str, typer.Argument(help="Prefix of the keys to list, for instance trainer.loss.")] = "",
) -> None:
    """List the keys of a recipe: types, defaults, meanings."""


@app.command()
def check(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE|MODEL", help="Recipe, as for `train`; or the folder of a model or of a run."),
    ],
    overrides: Overrides = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="With MODEL: load it, and prove how its rows are computed here.")
    ] = False,
) -> None:
    """Check a recipe, or whether a model can be trained. Prints derived settings, or the model's cost."""
    if Path(recipe).is_dir() and not is_project(Path(recipe)):
        from rlhf.apps.cli.check_model import run_check_model

        raise typer.Exit(run_check_model(Path(recipe), overrides or [], prove=prove))
    from rlhf.apps.cli.check import run_check

    if prove:
        raise UserError("--prove goes with a model folder")
    raise typer.Exit(run_check(recipe_named(recipe), overrides or []))


@command(app, "sweep")
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


@command(app)
def translate(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of TRL, verl or OpenRLHF.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file for the recipe.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that train, if CONFIG does not say (TRL).")] = None,
) -> None:
    """Make a recipe of TRL's, verl's or OpenRLHF's settings. Says what became of each."""


@command(app, "explain")
def explain_metric(
    metric: Annotated[str, typer.Argument(metavar="[METRIC]", help="Name of a metric, or the beginning of one.")] = "",
) -> None:
    """Explain a metric: meaning, healthy range, what to do. Without a name, list all."""


@command(app)
def top(path: RunArgument) -> None:
    """Watch a run in the terminal: curves and warnings. Ends with the run, or with the key q."""


@command(app, "report")
def write_report(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="HTML file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write a report of a run as one HTML file. It has curves, warnings, episodes, recipe and provenance."""


@command(app)
def audit(path: RunArgument) -> None:
    """Check the records of a run against one another. Covers samples, tokens, rewards, versions and checkpoints."""


@command(app)
def drill(recipe: RecipeFile, overrides: Overrides = None) -> None:
    """Train a recipe while its parts are killed, and report."""


@command(app)
def doctor(
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Check the GPUs (takes minutes); exit code 2 without one.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="With --gpu: the model to check with, instead of a random one.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="With --gpu: number of nodes of the Ray cluster.")] = 1,
    report: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="With --gpu: file for the report.")
    ] = None,
) -> None:
    """Check this machine and report problems."""


@command(serve)
def serve_reward(
    reward: RewardName,
    overrides: Overrides = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8100,
    host: Annotated[str, typer.Option(help="Address; other than loopback it needs a token.")] = "127.0.0.1",
    token_env: TokenEnv = None,
    capacity: Annotated[int, typer.Option(min=1, help="Maximum of concurrent requests; others wait.")] = 32,
    stop_text: Annotated[
        list[str] | None, typer.Option(help="Text to cut from the end of replies; may be repeated.")
    ] = None,
    name: Names = None,
    certificate: Certificate = None,
    key: Key = None,
    limit: LimitTexts = None,
) -> None:
    """Serve a reward over the OpenRLHF, slime and vLLM HTTP APIs."""


@command(serve)
def serve_policy(
    checkpoint: Checkpoint,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8200,
    host: Annotated[str, typer.Option(help="Address; other than loopback it needs a token.")] = "127.0.0.1",
    token_env: TokenEnv = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply in tokens.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0.0, help="Softmax temperature; 0 is greedy.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    tool_format: Annotated[
        str,
        typer.Option(help="Format of tool calls: auto (the chat template's), one of `rlhf options agent.tool_format`."),
    ] = "auto",
    client_stop: Annotated[
        Literal["refuse", "cut"],
        typer.Option(
            help="Requests with stop texts: refuse, or cut (the reply ends there, and the episode records it)."
        ),
    ] = "cut",
    structured_outputs: Annotated[
        Literal["apply", "ignore"],
        typer.Option(help="Forced tool calls and JSON schemas: apply (recorded, and not trained later), or ignore."),
    ] = "apply",
    trajectories: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="New file for every finished episode with its tokens.")
    ] = None,
    capacity: Annotated[int, typer.Option(min=1, help="Maximum of open sessions; more are refused.")] = 1024,
    lease_seconds: Annotated[
        float, typer.Option(min=1.0, help="End an episode after this long without a request.")
    ] = 600.0,
    name: Names = None,
    certificate: Certificate = None,
    key: Key = None,
    limit: LimitTexts = None,
) -> None:
    """Serve a checkpoint over the OpenAI API and record the agents' episodes."""


@command(serve)
def serve_env(
    environment: Annotated[
        str,
        typer.Argument(metavar="MODULE:CLASS", help="A class with spec, reset, step and close; or a recipe with one."),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help="Address; other than loopback it needs a token.")] = "127.0.0.1",
    arguments: Annotated[str, typer.Option(metavar="JSON", help="Arguments of the class: an object, or @FILE.")] = "{}",
    isolation: Annotated[
        str,
        typer.Option(
            help="thread: one thread per session, async methods on the event loop. process: one process per"
            " session, for code that hangs or ends its process."
        ),
    ] = "thread",
    max_sessions: Annotated[int, typer.Option(min=1, help="Maximum of concurrent sessions; more are refused.")] = 1024,
    lease_seconds: Annotated[
        float, typer.Option(min=1.0, help="End a session after this long without a request.")
    ] = 120.0,
    step_seconds: Annotated[float, typer.Option(min=0.01, help="Deadline of a step.")] = 50.0,
    reset_seconds: Annotated[float, typer.Option(min=0.01, help="Deadline of a reset.")] = 50.0,
    token_env: TokenEnv = None,
    name: Names = None,
    certificate: Certificate = None,
    key: Key = None,
    limit: LimitTexts = None,
) -> None:
    """Serve an environment over the OpenEnv protocol."""


@command(env)
def env_check(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address, for instance http://127.0.0.1:8000.")],
    action: Annotated[
        str | None, typer.Option(metavar="JSON", help="A valid action; default: one made from its schema.")
    ] = None,
    token_env: TokenEnv = None,
) -> None:
    """Test a running OpenEnv environment server."""


def check_surroundings() -> None:
    """Check that this process has a folder, and its user a home and a name, which libraries ask for. Raises
    `UserError`."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise UserError("the current folder was deleted; change to one that exists") from None
    try:
        Path.home()
    except RuntimeError:
        raise UserError(f"user {os.getuid()} has no home; set HOME to a folder that it can write to") from None
    try:
        getpass.getuser()
    except (KeyError, OSError):  # before Python 3.13, and since
        os.environ["LOGNAME"] = str(os.getuid())


def main() -> None:
    """Run a command. Print a named failure as one line and exit with its code; exit with 130 after Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script that starts a command with & has it ignored
    sys.stdout, sys.stderr = lasting(sys.stdout, ends=True), lasting(sys.stderr)
    try:
        check_surroundings()
        try:
            app()
        finally:
            sys.stdout.flush()
    except RlhfError as error:
        sys.exit(print_failure(error))
    except KeyboardInterrupt:
        sys.exit(130)
