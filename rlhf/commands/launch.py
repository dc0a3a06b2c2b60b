"""`rlhf launch`: runs one training on several plain hosts over ssh."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.commands.arguments import Overrides, RecipeFile
from rlhf.commands.failures import tell
from rlhf.deploy.ssh.hosts_file import read_hosts
from rlhf.deploy.ssh.remote_command import node_command, train_command
from rlhf.errors import HostError

if TYPE_CHECKING:
    from rlhf.deploy.ssh.launch import Launch


def launch(
    recipe: RecipeFile,
    hosts: Annotated[Path, typer.Option(metavar="FILE", help="One host a line, the head first.")],
    overrides: Overrides = None,
    user: Annotated[str | None, typer.Option(help="Whom to log in as; else as ssh is set up.")] = None,
    cpus_per_host: Annotated[int | None, typer.Option(min=1, help="Cores to use of a host; else all.")] = None,
    gpus_per_host: Annotated[int | None, typer.Option(min=0, help="GPUs to use of a host; else all.")] = None,
    ssh_config: Annotated[Path | None, typer.Option(metavar="FILE", help="Instead of ~/.ssh/config.")] = None,
    interface: Annotated[str | None, typer.Option(help="Of the head, to which all connect; else its default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run where; connect to none.")] = False,
) -> None:
    """Train on several hosts over ssh: they share a file system, and the path of this environment."""
    from rlhf.deploy.ssh.launch import Launch
    from rlhf.recipe.loading import load_recipe

    words = [str(recipe.absolute()), *(overrides or [])]
    job = Launch(
        recipe=load_recipe(recipe, overrides or []).recipe,
        words=[*words, "--resume"] if resume else words,
        hosts=read_hosts(hosts, cpus_per_host, gpus_per_host),
        user=user,
        ssh_config=ssh_config.absolute() if ssh_config else None,
        interface=interface,
    )
    raise typer.Exit(show(job) if dry_run else launched(job))


def launched(job: Launch) -> int:
    """Run the job. Unusable hosts are printed one per line."""
    from rlhf.deploy.ssh.launch import run_on_hosts

    refused: Sequence[BaseException] = ()
    try:
        return asyncio.run(run_on_hosts(job))
    except* HostError as group:
        refused = group.exceptions
    return max(tell(error) for error in refused if isinstance(error, HostError))


def show(job: Launch) -> int:
    """Print the commands of each host instead of running them."""
    from rlhf.deploy.ssh.launch import RENDEZVOUS

    shared = job.recipe.run_dir.absolute().parent / f".{job.recipe.run_dir.name}-launch-…"
    for index, host in enumerate(job.hosts):
        typer.echo(f"{host.name}: {shlex.join(job.connection(host, shared))}")
        command = node_command(shared / RENDEZVOUS, host, head=index == 0, interface=job.interface)
        typer.echo(f"{host.name}: {shlex.join(command)}")
    typer.echo(f"{job.hosts[0].name}: {shlex.join(train_command(job.words, len(job.hosts), shared / RENDEZVOUS))}")
    return 0
