"""Reserves a plan's resources in Ray: a placement group with one bundle per worker, and an actor in each bundle."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.cluster.forking.started import forked_by_ray
from rlhf.cluster.local import thread_environment
from rlhf.cluster.quiet_ray import ray_module
from rlhf.cluster.ray_host import RayHost
from rlhf.cluster.ray_nodes import ID_LABEL
from rlhf.cluster.resources import Placement, Plan, Role


def reserve(planned: Plan, ids: Mapping[str, str]) -> Any:
    """Reserve all bundles at once, each on the node that the plan names. `ids` maps node names to Ray's node ids."""
    return ray_module().util.placement_group(
        [_bundle(placement) for placement in planned.placements],
        strategy="PACK",
        bundle_label_selector=[{ID_LABEL: ids[placement.node]} for placement in planned.placements],
    )


def launch_ray_worker(
    group: Any,
    bundle: int,
    placement: Placement,
    role: Role,
    log_file: Path,
    *,
    head: str | None,
    forks: Path | None,
    gpus: Sequence[str] | None,
) -> Any:
    """Start one worker's process in its bundle, as a fork of the server at `forks` if there is one. It sees the `gpus`
    of other workers, or by default those that Ray has given to it."""
    from rlhf.cluster.ray_worker import RayWorker

    ray = ray_module()
    in_bundle = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    host = ray.remote(RayHost).options(
        num_cpus=placement.cpus,
        num_gpus=placement.own_gpus,
        max_concurrency=1000,
        runtime_env=forked_by_ray(forks) if forks else quoted_python(sys.executable),
        scheduling_strategy=in_bundle(group, placement_group_bundle_index=bundle),
    )
    # Variables are passed to the actor: in Ray's `runtime_env` they cost a worker two process starts in a row.
    environment = thread_environment([placement]) | dict(role.env)
    actor = host.remote(
        role.factory, role.imports, role.concurrency, environment, role.python_path, str(log_file), head, gpus
    )
    return RayWorker(placement.worker, placement.node, actor)


def quoted_python(executable: str) -> dict[str, str]:
    """A runtime environment for an interpreter path with a space: Ray puts the path unquoted into a shell command,
    which fails."""
    quoted = shlex.quote(executable)
    return {} if quoted == executable else {"py_executable": quoted}


def _bundle(placement: Placement) -> dict[str, float]:
    wanted = {"CPU": placement.cpus, "GPU": placement.own_gpus}
    return {resource: amount for resource, amount in wanted.items() if amount}
