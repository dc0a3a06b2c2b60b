"""`rlhf slurm` makes a SLURM job over many nodes from a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf.commands.arguments import Overrides, RecipeFile
from rlhf.deploy.slurm.job import NodeGroup, check_job
from rlhf.deploy.slurm.render import render, write_script


def slurm(
    recipe: RecipeFile,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines for learners and engines.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, help="GPUs of each machine.")] = 0,
    cpus_per_node: Annotated[int | None, typer.Option(min=1, help="Cores of each; default: whole machines.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition; default: the cluster's.")] = None,
    time: Annotated[str | None, typer.Option(help="Time limit in SLURM's notation: 90, 12:00:00, 2-12.")] = None,
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None,
    job_name: Annotated[str | None, typer.Option(help="Job name; default: the recipe's.")] = None,
    cpu_nodes: Annotated[int, typer.Option(min=0, help="Additional machines without GPUs, for servers.")] = 0,
    cpu_partition: Annotated[str | None, typer.Option(help="Partition of the additional machines.")] = None,
    warn_seconds: Annotated[
        int,
        typer.Option(
            "--signal", min=1, max=65535, help="Save this many seconds before the limit; more than an update."
        ),
    ] = 300,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the script with sbatch.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Make a SLURM script of a recipe; print or submit it."""
    from rlhf.deploy.slurm.submit import job_of, submit_job

    main = NodeGroup(nodes=nodes, gpus=gpus_per_node, cpus=cpus_per_node, partition=partition)
    servers = NodeGroup(nodes=cpu_nodes, cpus=cpus_per_node, partition=cpu_partition) if cpu_nodes else None
    job = job_of(
        recipe,
        overrides or [],
        main=main,
        servers=servers,
        name=job_name,
        time=time,
        account=account,
        warn_seconds=warn_seconds,
    )
    check_job(job)
    if job.use:
        print(f"{job.name} {job.use}", file=sys.stderr)
    script = render(job)
    if output is not None:
        write_script(output, script)
    if submit:
        print(submit_job(job, script))
    elif output is None:
        print(script, end="")
