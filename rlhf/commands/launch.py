"""`rlhf launch` runs one training on several hosts over ssh."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.commands.arguments import Overrides, RecipeFile
from rlhf.commands.failures import print_failure
from rlhf.errors import HostError

if TYPE_CHECKING:
    from rlhf.deploy.ssh.launch import Launch


def launch(
    recipe: RecipeFile,
    hosts: Annotated[Path, typer.Option(metavar="FILE", help="File with one host a line, the head first.")],
    overrides: Overrides = None,
    user: Annotated[str | None, typer.Option(help="User name to log in with; default: ssh's.")] = None,
    cpus_per_host: Annotated[int | None, typer.Option(min=1, help="Cores to use of each host; default: all.")] = None,
    gpus_per_host: Annotated[int | None, typer.Option(min=0, help="GPUs to use of each host; default: all.")] = None,
    ssh_config: Annotated[Path | None, typer.Option(metavar="FILE", help="Replaces ~/.ssh/config.")] = None,
    interface: Annotated[str | None, typer.Option(help="Network interface of the head; default: its route.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands without connecting.")] = False,
) -> None:
    """Train on several hosts over ssh. They need a shared file system and this environment at the same path."""
    from rlhf.deploy.ssh.hosts_file import read_hosts
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
    """Run the job; print unusable hosts, one per line."""
    import asyncio

    from rlhf.deploy.ssh.launch import run_on_hosts

    refused: Sequence[BaseException] = ()
    try:
        return asyncio.run(run_on_hosts(job))
    except* HostError as group:
        refused = group.exceptions
    return max(print_failure(error) for error in refused if isinstance(error, HostError))


def show(job: Launch) -> int:
    """Print the commands of each host instead of running them."""
    from rlhf.deploy.ssh.launch import RENDEZVOUS
    from rlhf.deploy.ssh.remote_command import node_command, train_command

    shared = job.recipe.run_dir.absolute().parent / f".{job.recipe.run_dir.name}-launch-…"
    for index, host in enumerate(job.hosts):
        typer.echo(f"{host.name}: {shlex.join(job.connection(host, shared))}")
        command = node_command(shared / RENDEZVOUS, host, head=index == 0, interface=job.interface)
        typer.echo(f"{host.name}: {shlex.join(command)}")
    typer.echo(f"{job.hosts[0].name}: {shlex.join(train_command(job.words, len(job.hosts), shared / RENDEZVOUS))}")
    return 0
