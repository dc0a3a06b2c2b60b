"""`rlhf slurm` turns a recipe into a SLURM job on many nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf.apps.arguments import Overrides, RecipeFile
from rlhf.apps.deploy.slurm.job import Container, NodeGroup, check_job, gpus_of
from rlhf.apps.deploy.slurm.render import render
from rlhf.errors import UserError

Extra = Annotated[
    list[str], typer.Option(metavar="LINE", help="Another `#SBATCH` option, such as --comment=mine; repeatable.")
]
WarnSeconds = Annotated[
    int | None,
    typer.Option(
        "--signal", min=1, max=65535, help="Save this many seconds before the limit; default: an update's by the plan."
    ),
]
ContainerImage = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Run in an image: FILE.sif by Apptainer, others by pyxis.")
]


def slurm(
    recipe: RecipeFile,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines for learners and engines.")] = 1,
    gpus_per_node: Annotated[str, typer.Option(help="GPUs of each machine: 8, or h100:8 for that type.")] = "0",
    cpus_per_node: Annotated[int | None, typer.Option(min=1, help="Cores of each; default: whole machines.")] = None,
    mem: Annotated[str | None, typer.Option(help="Memory of each: 64G; default: all of whole machines.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition; default: the cluster's.")] = None,
    constraint: Annotated[str | None, typer.Option(help="Features that the machines must have: 'h100&ib'.")] = None,
    time: Annotated[str | None, typer.Option(help="Time limit in SLURM's notation: 90, 12:00:00, 2-12.")] = None,
    account: Annotated[str | None, typer.Option(help="Account to charge.")] = None,
    qos: Annotated[str | None, typer.Option(help="Quality of service.")] = None,
    reservation: Annotated[str | None, typer.Option(help="Reservation to run in.")] = None,
    extra: Extra = [],  # noqa: B006 - read only
    job_name: Annotated[str | None, typer.Option(help="Job name; default: the recipe's.")] = None,
    cpu_nodes: Annotated[int, typer.Option(min=0, help="Additional machines without GPUs, for servers.")] = 0,
    cpu_partition: Annotated[str | None, typer.Option(help="Partition of the additional machines.")] = None,
    warn_seconds: WarnSeconds = None,
    interface: Annotated[str | None, typer.Option(help="Network interface of the head; default: its route.")] = None,
    container: ContainerImage = None,
    container_mounts: Annotated[str, typer.Option(metavar="A,B:THERE", help="More folders to see in the image.")] = "",
    submit: Annotated[bool, typer.Option("--submit", help="Submit the script with sbatch.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of printing.")] = None,
) -> None:
    """Make a SLURM script of a recipe; print or submit it."""
    from rlhf.apps.deploy.slurm.submit import job_of, submit_job
    from rlhf.engines.vllm.environment import installed_device

    gpu_type, gpus = gpus_of(gpus_per_node)
    main = NodeGroup(
        nodes=nodes, gpus=gpus, gpu_type=gpu_type, cpus=cpus_per_node, memory=mem, partition=partition,
        constraint=constraint,
    )  # fmt: skip
    servers = NodeGroup(nodes=cpu_nodes, cpus=cpus_per_node, partition=cpu_partition) if cpu_nodes else None
    mounts = [mount for mount in container_mounts.split(",") if mount]
    job = job_of(
        recipe, overrides or [], main=main, servers=servers, name=job_name, time=time, account=account, qos=qos,
        reservation=reservation, extra=tuple(extra), interface=interface, warn_seconds=warn_seconds,
        container=Container(image=container, mounts=mounts) if container else None,
    )  # fmt: skip
    check_job(job)
    if job.use:
        print(f"{job.name} {job.use}", file=sys.stderr)
    if job.used_gpus and not job.container and installed_device() == "cpu":
        print("warning: this installation is for CPUs, the job wants GPUs: make setup GPU=1", file=sys.stderr)
    script = render(job)
    if output is not None:
        try:
            output.write_text(script)
        except OSError as error:
            raise UserError(f"cannot write {output} ({error.strerror}); give --output another file") from None
    if submit:
        print(submit_job(job, script))
    elif output is None:
        print(script, end="")
