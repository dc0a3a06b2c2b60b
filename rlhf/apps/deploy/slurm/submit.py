"""Makes a SLURM job from a recipe, and submits its script after checks that report known problems in one line."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf.apps.deploy.slurm.job import Container, NodeGroup, SlurmJob
from rlhf.apps.deploy.slurm.render import nodes
from rlhf.cluster.roles import used_gpus
from rlhf.durable import private_folder
from rlhf.errors import ConfigError, UserError
from rlhf.recipe.by_size import parameter_count, saving_seconds, update_seconds
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.placement import PlacementTarget
from rlhf.recipe.planning.machines import machine_of_job
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import located
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import roles_of
from rlhf.runs.resolved import resolved_yaml

ANSWER_SECONDS = 60.0
"""Deadline of sbatch, which waits a few times ten seconds for a controller that is down."""
ELSEWHERE = "later"
"""Marks that the workers are not placed on this machine; the real address is known when the job's head runs."""
LEAST_JOIN_SECONDS = 300
LEAST_NOTICE_SECONDS, MOST_NOTICE_SECONDS = 300, 65535
"""The second is SLURM's own bound."""


def job_of(
    recipe: Path,
    overrides: Sequence[str],
    *,
    main: NodeGroup,
    servers: NodeGroup | None,
    name: str | None,
    container: Container | None,
    warn_seconds: int | None = None,
    **options: Any,
) -> SlurmJob:
    """Check a recipe as `rlhf check` does, and return its job; `options` are further fields of it. In a container the
    command is the image's. Raises `UserError`."""
    machine = machine_of_job(main.nodes, main.gpus, main.cpus, main.gpu_type)
    loaded = located(load_recipe(recipe, overrides), target=PlacementTarget(machine=machine))
    checked = loaded.recipe
    if checked.cluster.kind != "ray":
        raise ConfigError(f"cluster.kind is {checked.cluster.kind}, which stays in one process; use cluster.kind=ray")
    preflight(checked.model_copy(update={"cluster": checked.cluster.model_copy(update={"address": ELSEWHERE})}))
    roles = roles_of(checked)
    return SlurmJob(
        name=name or checked.name,
        recipe=resolved_yaml(checked, loaded.origins),
        command=shlex.join(["rlhf", *sys.argv[1:]]),
        warn_seconds=warn_seconds or notice_seconds(checked),
        run_dir=checked.run_dir.absolute(),
        folder=Path.cwd(),
        rlhf=Path("rlhf") if container else Path(sys.executable).parent / "rlhf",
        main=main,
        servers=servers,
        container=container,
        used_gpus=used_gpus(roles),
        used_cores=sum(role.count * role.cpus for role in roles),
        join_seconds=max(LEAST_JOIN_SECONDS, round(checked.cluster.placement_timeout_seconds)),
        **options,
    )


def notice_seconds(recipe: Recipe) -> int:
    """Return the seconds before the time limit at which a run must hear of it: those of an update, which is finished
    first, and of a checkpoint."""
    weights = parameter_count(recipe.model)
    seconds = update_seconds(recipe, weights) + saving_seconds(weights, recipe.trainer.deepspeed.ranks)
    return min(max(60 * math.ceil(seconds / 60), LEAST_NOTICE_SECONDS), MOST_NOTICE_SECONDS)


def submit_job(job: SlurmJob, script: str) -> str:
    """Submit the job, and return lines that say how to follow and end it. Raises `UserError`."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "there is no sbatch on this machine; submit from a login node of the cluster, or print the script"
        )
    private_folder(job.run_dir)
    job.logs.mkdir(exist_ok=True)  # SLURM does not make the folders of its output files
    command = ["sbatch", "--parsable"]
    try:
        done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"sbatch did not answer within {ANSWER_SECONDS:g} s; is SLURM's controller up?") from None
    if done.returncode != 0:
        raise UserError(f"sbatch failed: {' '.join(done.stderr.split()) or f'code {done.returncode}'}")
    number = done.stdout.strip().partition(";")[0]
    return (
        f"job {number}: {nodes(job.nodes)}\n"
        f"follow it    tail -F {job.logs}/slurm-{number}.out\n"
        f"its nodes    {job.logs}/node-*.log\n"
        f"its state    squeue -j {number}\n"
        f"end it       scancel {number}"
    )
