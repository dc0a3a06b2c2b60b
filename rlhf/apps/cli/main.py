"""The command line. It starts fast: the implementation of a command is imported when it is called."""

from __future__ import annotations

import getpass
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from rlhf.apps import cli as commands
from rlhf.apps.arguments import Checkpoint, Overrides, RecipeFile, RunArgument, is_project, recipe_named
from rlhf.apps.cli.episodes import episodes
from rlhf.apps.cli.kubernetes import kubernetes
from rlhf.apps.cli.node import node
from rlhf.apps.cli.recipes import recipes
from rlhf.apps.cli.serve_sandbox import sandbox
from rlhf.apps.cli.slurm import slurm
from rlhf.apps.cli.sweep import sweep_recipe
from rlhf.apps.cli.view import view
from rlhf.apps.failures import print_failure
from rlhf.apps.server_options import Certificate, Key, LimitTexts, Names, access_of
from rlhf.cluster.console import lasting
from rlhf.errors import RlhfError, UserError
from rlhf.http.binding import POLICY, REWARD

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
app.add_typer(serve, name="serve")
app.add_typer(env, name="env")
app.add_typer(recipes, name="recipes")

RewardName = Annotated[
    str, typer.Argument(metavar="REWARD", help="Recipe, as for `train`; a kind; or module:function.")
]
TokenEnv = Annotated[str | None, typer.Option(help="Environment variable with the bearer token.")]


@app.command()
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
    given = [*(overrides or []), *commands.train.join_override(address, rendezvous)]
    raise typer.Exit(commands.train.run_train(recipe, given, resume=resume, start_over=start_over))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder; its name is the run's.")],
    kind: Annotated[
        str,
        typer.Option(
            help="What you will write yourself: reward, environment, agent or preference.",
            autocompletion=lambda: ["reward", "environment", "agent", "preference"],
        ),
    ] = "reward",
) -> None:
    """Make a project of your own. It has a recipe that learns at once, rows, a reward or environment, and its test."""
    raise typer.Exit(commands.init.run_init(folder, kind))


@app.command("plan")
def plan_recipe(
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
    raise typer.Exit(
        commands.plan.run_plan(
            recipe,
            overrides or [],
            gpus=gpus,
            nodes=nodes,
            cores=cores,
            memory_gb=memory,
            config=config,
            prompt_tokens=prompt_tokens,
            as_json=as_json,
        )
    )


@app.command("eval")
def evaluate(
    checkpoint: Checkpoint,
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE", parser=recipe_named, help="The recipe with the held-out tasks [default: the run's]."
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Evaluate a checkpoint on the held-out tasks of a recipe. By default that of its run."""
    raise typer.Exit(commands.eval.run_eval(checkpoint, recipe, overrides or []))


@app.command()
def generate(
    checkpoint: Checkpoint,
    prompt: Annotated[str, typer.Argument(help="The user's message.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest reply in tokens.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="Softmax temperature; 0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Generate a reply to one message with a checkpoint."""
    raise typer.Exit(commands.generate.run_generate(checkpoint, prompt, max_tokens, temperature, seed))


@app.command()
def score(
    recipe: RecipeFile,
    rows: Annotated[Path, typer.Argument(metavar="ROWS.jsonl", help="The dataset's columns, and `response`.")],
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
    gold: Annotated[bool, typer.Option("--gold", help="Score the reference answers against themselves.")] = False,
) -> None:
    """Score recorded responses with a recipe's reward."""
    raise typer.Exit(commands.score.run_score(recipe, rows, overrides or [], output, gold))


rewards = typer.Typer(help="Test rewards.", no_args_is_help=True)
app.add_typer(rewards, name="reward")


@rewards.command("check")
def reward_check(
    reward: RewardName,
    overrides: Overrides = None,
    prompt: Annotated[str, typer.Option(help="The question.")] = "What is 6 times 7?",
    answer: Annotated[str, typer.Option(help="Its answer.")] = "42",
    wrong: Annotated[list[str] | None, typer.Option(help="A wrong answer; may be repeated.")] = None,
    reply: Annotated[str, typer.Option(help="How a reply states an answer.")] = "{answer}",
) -> None:
    """Score hostile replies with a reward and print those that it accepts."""
    others = wrong or ["41", "43", "24", "67"]
    code = commands.reward_check.run_reward_check(
        reward, overrides or [], prompt=prompt, answer=answer, wrong=others, reply=reply
    )
    raise typer.Exit(code)


@app.command()
def export(
    checkpoint: Checkpoint, output: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to make.")]
) -> None:
    """Export a checkpoint's model as a Hugging Face folder."""
    raise typer.Exit(commands.export.run_export(checkpoint, output))


@app.command()
def options(
    prefix: Annotated[str, typer.Argument(help="Prefix of the keys to list, for instance trainer.loss.")] = "",
) -> None:
    """List the keys of a recipe: types, defaults, meanings."""
    raise typer.Exit(commands.options.run_options(prefix))


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
        raise typer.Exit(commands.check_model.run_check_model(Path(recipe), overrides or [], prove=prove))
    if prove:
        raise UserError("--prove goes with a model folder")
    raise typer.Exit(commands.check.run_check(recipe_named(recipe), overrides or []))


app.command("sweep")(sweep_recipe)
app.command()(episodes)
app.command()(view)
app.command()(kubernetes)


@app.command()
def translate(
    configuration: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration of TRL, verl or OpenRLHF.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="New file for the recipe.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that train, if CONFIG does not say (TRL).")] = None,
) -> None:
    """Make a recipe of TRL's, verl's or OpenRLHF's settings. Says what became of each."""
    raise typer.Exit(commands.translate.run_translate(configuration, output, gpus))


@app.command("explain")
def explain_metric(
    metric: Annotated[str, typer.Argument(metavar="[METRIC]", help="Name of a metric, or the beginning of one.")] = "",
) -> None:
    """Explain a metric: meaning, healthy range, what to do. Without a name, list all."""
    raise typer.Exit(commands.explain.run_explain(metric))


@app.command()
def top(run: RunArgument) -> None:
    """Watch a run in the terminal: curves and warnings. Ends with the run, or with the key q."""
    raise typer.Exit(commands.top.run_top(run))


@app.command("report")
def write_report(
    run: RunArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="HTML file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write a report of a run as one HTML file. It has curves, warnings, episodes, recipe and provenance."""
    raise typer.Exit(commands.report.run_report(run, output))


@app.command()
def audit(run: RunArgument) -> None:
    """Check the records of a run against one another. Covers samples, tokens, rewards, versions and checkpoints."""
    raise typer.Exit(commands.audit.run_audit(run))


@app.command()
def drill(recipe: RecipeFile, overrides: Overrides = None) -> None:
    """Train a recipe while its parts are killed, and report."""
    raise typer.Exit(commands.drill.run_drill(recipe, overrides or ()))


@app.command()
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
    if not gpu and (model or report or nodes > 1):
        raise UserError("--model, --nodes and --json go with --gpu")
    raise typer.Exit(commands.doctor.run_gpu_doctor(model, nodes, report) if gpu else commands.doctor.run_doctor())


@serve.command("reward")
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
    code = commands.serve_reward.run_serve_reward(
        reward,
        overrides or [],
        host=host,
        port=port,
        token_env=token_env,
        capacity=capacity,
        stop_texts=stop_text or [],
        access=access_of(name, certificate, key, limit, REWARD),
    )
    raise typer.Exit(code)


serve.command("sandbox")(sandbox)
app.command("node")(node)
app.command("slurm")(slurm)


@serve.command("policy")
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
    ] = "refuse",
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
    settings = commands.serve_policy.PolicySettings(
        host=host,
        port=port,
        token_env=token_env,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        tool_format=tool_format,
        client_stop=client_stop,
        trajectories=trajectories,
        capacity=capacity,
        lease_seconds=lease_seconds,
        access=access_of(name, certificate, key, limit, POLICY),
    )
    raise typer.Exit(commands.serve_policy.run_serve_policy(checkpoint, settings))


@serve.command("env")
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
    settings = commands.serve_env.settings_of(
        host=host,
        port=port,
        token_env=token_env,
        max_sessions=max_sessions,
        lease_seconds=lease_seconds,
        step_seconds=step_seconds,
        reset_seconds=reset_seconds,
        access_of=partial(access_of, name, certificate, key, limit),
    )
    raise typer.Exit(commands.serve_env.run_serve_env(environment, arguments, isolation, settings))


@env.command("check")
def env_check(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address, for instance http://127.0.0.1:8000.")],
    action: Annotated[
        str | None, typer.Option(metavar="JSON", help="A valid action; default: one made from its schema.")
    ] = None,
    token_env: TokenEnv = None,
) -> None:
    """Test a running OpenEnv environment server."""
    raise typer.Exit(commands.env_check.run_env_check(url, token_env, action))


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
