"""Renders the script of a SLURM job from the templates in `scripts/slurm/`."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from rlhf.apps.deploy.slurm.job import NodeGroup, SlurmJob
from rlhf.errors import UserError

TEMPLATES = Path(__file__).parents[4] / "scripts" / "slurm"


class Template(string.Template):
    """A template in which `@@{name}` is replaced, because the shell uses the dollar sign."""

    delimiter = "@@"


def render(job: SlurmJob) -> str:
    """Return the whole script."""
    gpus = f" with {job.main.gpus} GPUs each" if job.main.gpus else ""
    servers = f", and {nodes(job.servers.nodes)} for servers" if job.servers else ""
    return fill_template(
        "job.sbatch",
        title=f"{job.name} on {nodes(job.main.nodes)}{gpus}{servers}",
        directives="\n".join(directives(job)),
        rlhf=shlex.quote(str(job.rlhf)),
        made=" ".join(f"rlhf {version('rlhf')}: {job.command}".split("\n")),
        recipe=job.recipe.rstrip("\n"),
        run_dir=shlex.quote(str(job.run_dir)),
        warn_seconds=str(job.warn_seconds),
        **container_words(job),
        nodes="\n".join(steps(job)),
        all_nodes=str(job.nodes),
        join_seconds=str(job.join_seconds),
    )


def container_words(job: SlurmJob) -> dict[str, str]:
    """Return the parts of the script that put nodes and training into the job's image. Apptainer is a command. Pyxis is
    an option of srun, so there the training is a step too, and all steps share `/tmp`, where Ray's sockets are."""
    if job.container is None:
        return {"container": "", "step_inside": "", "inside": "", "train_inside": ""}
    if job.container.is_apptainer:
        gpus = "--nv " if job.main.gpus else ""
        folders = f"--pwd {shlex.quote(str(job.folder))} --bind {shlex.quote(mounts(job))}"
        words = f"apptainer exec {gpus}{folders} {shlex.quote(job.container.image)}"
        parts = {"step_inside": "", "inside": '"${inside[@]}" ', "train_inside": '"${inside[@]}" '}
    else:
        given = {"image": job.container.image, "workdir": str(job.folder), "mounts": mounts(job, "/tmp")}
        words = " ".join(f"--container-{name}={shlex.quote(value)}" for name, value in given.items())
        options = ("--het-group=0 " if job.servers else "") + '--nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" '
        parts = {"step_inside": ' "${inside[@]}"', "inside": "", "train_inside": f'"${{step[@]}}" {options}'}
    return parts | {"container": f"# Nodes and training run in this image.\ninside=({words})\n\n"}


def mounts(job: SlurmJob, *more: str) -> str:
    """Return the host's folders in the image: the folder of the command, the run's, and the requested ones."""
    own = [str(job.folder), *([] if job.run_dir.is_relative_to(job.folder) else [str(job.run_dir)])]
    asked = job.container.mounts if job.container else ()
    return ",".join(mount if ":" in mount else f"{mount}:{mount}" for mount in (*own, *asked, *more))


def nodes(number: int) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} node{'' if number == 1 else 's'}"


def directives(job: SlurmJob) -> Iterator[str]:
    """Iterate over the `#SBATCH` lines with comments that give their reasons."""
    yield f"#SBATCH --job-name={job.name}"
    yield f'#SBATCH --chdir="{job.folder}"'
    yield "# SLURM's own words, for it makes no folders. This script makes the run's, and prints into its logs."
    yield f'#SBATCH --output="{job.folder}/slurm-%j.out"'
    yield "#SBATCH --open-mode=append"
    yield f"# Tell this script (B:) {job.warn_seconds} s before the time limit; it may be queued again."
    yield f"#SBATCH --signal=B:USR1@{job.warn_seconds}"
    yield "#SBATCH --requeue"
    yield from component(job, job.main)
    yield from (f"#SBATCH {line}" for line in job.extra)
    if job.servers:
        yield "# Machines without GPUs, allocated together with the others."
        yield "#SBATCH hetjob"
        yield from component(job, job.servers)


def component(job: SlurmJob, part: NodeGroup) -> Iterator[str]:
    """Iterate over the `#SBATCH` lines for the machines of one kind."""
    yield f"#SBATCH --nodes={part.nodes}"
    yield "#SBATCH --ntasks-per-node=1"
    if part.gpus:
        yield f"#SBATCH --gpus-per-node={part.gpu_words}"
    if part.cpus:
        yield f"#SBATCH --cpus-per-task={part.cpus}"
    else:
        yield "# Whole machines, with all their memory."
        yield "#SBATCH --exclusive"
    options = {"mem": part.memory or (None if part.cpus else "0"), "partition": part.partition, "account": job.account}
    options |= {"qos": job.qos, "reservation": job.reservation, "time": job.time}
    yield from (f"#SBATCH --{option}={value}" for option, value in options.items() if value is not None)
    if part.constraint:
        yield f'#SBATCH --constraint="{part.constraint}"'


def steps(job: SlurmJob) -> Iterator[str]:
    """Iterate over the commands that start the nodes: the head, those that join it, and those without GPUs."""
    gpus = f"--gpus-per-node={job.main.gpu_words} " if job.main.gpus else ""
    options = ("--het-group=0 " if job.servers else "") + gpus
    interface = f" --interface {shlex.quote(job.interface)}" if job.interface else ""
    yield fill_template("head.sh.part", options=options, interface=interface)
    if job.main.nodes > 1:
        yield fill_template("workers.sh.part", options=options, nodes=str(job.main.nodes - 1))
    if job.servers:
        yield fill_template("servers.sh.part", options="--het-group=1 ", nodes=str(job.servers.nodes))


def fill_template(name: str, **values: str) -> str:
    """Return a template filled with its values. Raises `UserError` if the package comes without templates."""
    try:
        text = (TEMPLATES / name).read_text()
    except FileNotFoundError:
        raise UserError(
            f"{TEMPLATES / name} is missing; `rlhf slurm` needs a checkout, installed with pip -e"
        ) from None
    return Template(text).substitute(values)
