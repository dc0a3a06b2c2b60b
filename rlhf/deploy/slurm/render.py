"""Renders the script of a SLURM job from the templates in `scripts/slurm/`."""

from __future__ import annotations

import shlex
import string
from collections.abc import Iterator
from pathlib import Path

from rlhf.deploy.slurm.job import NodeGroup, SlurmJob
from rlhf.errors import UserError

TEMPLATES = Path(__file__).parents[3] / "scripts" / "slurm"
LIST_INDENT = "\n        "


class Template(string.Template):
    """A template in which `@@{name}` is replaced, because the shell uses the dollar sign."""

    delimiter = "@@"


def render(job: SlurmJob) -> str:
    """Return the whole script."""
    return fill_template(
        "job.sbatch",
        title=f"{job.name} on {describe_nodes(job)}",
        directives="\n".join(directives(job)),
        rlhf=shlex.quote(str(job.rlhf)),
        recipe=LIST_INDENT.join(shlex.quote(word) for word in (job.recipe, *job.overrides)),
        run_dir=shlex.quote(str(job.run_dir)),
        nodes="\n".join(steps(job)),
        all_nodes=str(job.nodes),
        join_seconds=str(job.join_seconds),
    )


def write_script(path: Path, script: str) -> None:
    """Write a script to a file. Raises `UserError` if the file cannot be written."""
    try:
        path.write_text(script)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); give --output another file") from None


def describe_nodes(job: SlurmJob) -> str:
    """`2 nodes with 8 GPUs each, and 4 nodes for servers`."""
    gpus = f" with {job.main.gpus} GPUs each" if job.main.gpus else ""
    servers = f", and {nodes(job.servers.nodes)} for servers" if job.servers else ""
    return f"{nodes(job.main.nodes)}{gpus}{servers}"


def nodes(number: int) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} node{'' if number == 1 else 's'}"


def directives(job: SlurmJob) -> Iterator[str]:
    """Iterate over the `#SBATCH` lines with comments that give their reasons."""
    yield f"#SBATCH --job-name={job.name}"
    yield f'#SBATCH --chdir="{job.folder}"'
    yield "# All that this script prints, of every start of the job, in one file."
    yield f'#SBATCH --output="{job.logs}/slurm-%j.out"'
    yield "#SBATCH --open-mode=append"
    yield f"# Tell this script (B:) {job.warn_seconds} s before the time limit; it may be queued again."
    yield f"#SBATCH --signal=B:USR1@{job.warn_seconds}"
    yield "#SBATCH --requeue"
    yield from component(job, job.main)
    if job.servers:
        yield "# Machines without GPUs, allocated together with the others."
        yield "#SBATCH hetjob"
        yield from component(job, job.servers)


def component(job: SlurmJob, part: NodeGroup) -> Iterator[str]:
    """Iterate over the `#SBATCH` lines for the machines of one kind."""
    yield f"#SBATCH --nodes={part.nodes}"
    yield "#SBATCH --ntasks-per-node=1"
    if part.gpus:
        yield f"#SBATCH --gpus-per-node={part.gpus}"
    if part.cpus:
        yield f"#SBATCH --cpus-per-task={part.cpus}"
    else:
        yield "# Whole machines, with all their memory."
        yield "#SBATCH --exclusive"
        yield "#SBATCH --mem=0"
    for option, value in (("partition", part.partition), ("account", job.account), ("time", job.time)):
        if value is not None:
            yield f"#SBATCH --{option}={value}"


def steps(job: SlurmJob) -> Iterator[str]:
    """Iterate over the commands that start the cluster's nodes: the head, the nodes that join it, and those without
    GPUs."""
    options = ("--het-group=0 " if job.servers else "") + (f"--gpus-per-node={job.main.gpus} " if job.main.gpus else "")
    yield fill_template("head.sh.part", options=options)
    if job.main.nodes > 1:
        yield fill_template("workers.sh.part", options=options, nodes=str(job.main.nodes - 1))
    if job.servers:
        yield fill_template("servers.sh.part", options="--het-group=1 ", nodes=str(job.servers.nodes))


def fill_template(name: str, **values: str) -> str:
    """Return a template filled with its values. Raises `UserError` if the package has no templates beside it."""
    try:
        text = (TEMPLATES / name).read_text()
    except FileNotFoundError:
        raise UserError(
            f"{TEMPLATES / name} is missing; `rlhf slurm` needs a checkout, installed with pip -e"
        ) from None
    return Template(text).substitute(values)
