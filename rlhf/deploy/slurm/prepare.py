"""Makes a SLURM job from a recipe that has been checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rlhf.deploy.slurm.job import NodeGroup, SlurmJob
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.preflight import preflight
from rlhf.recipe.resolve import located

ELSEWHERE = "cluster.address=later"
"""Marks that the workers are not placed on this machine; the real address is known when the job's head runs."""
LEAST_JOIN_SECONDS = 300


def job_of(
    recipe: Path,
    overrides: Sequence[str],
    *,
    main: NodeGroup,
    servers: NodeGroup | None,
    name: str | None,
    time: str | None,
    account: str | None,
    warn_seconds: int,
) -> SlurmJob:
    """The job for a recipe, which is checked as `rlhf check` does. Raises `UserError`."""
    checked = located(load_recipe(recipe, [*overrides, ELSEWHERE])).recipe
    if checked.cluster.kind != "ray":
        raise ConfigError(f"cluster.kind is {checked.cluster.kind}, which stays in one process; use cluster.kind=ray")
    preflight(checked)
    return SlurmJob(
        name=name or checked.name,
        recipe=str(recipe),
        overrides=tuple(overrides),
        run_dir=checked.run_dir.absolute(),
        folder=Path.cwd(),
        rlhf=Path(sys.executable).parent / "rlhf",
        main=main,
        servers=servers,
        time=time,
        account=account,
        warn_seconds=warn_seconds,
        join_seconds=max(LEAST_JOIN_SECONDS, round(checked.cluster.placement_timeout_seconds)),
    )
