"""Which GPUs every worker of the quickstart sees, as JSON: `python -m tests.integration.seen_gpus ADDRESS NODES DIR …`.

A process of its own: Ray keeps the first token that a process has shown."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from rlhf.cluster.ray_cluster import RayCluster
from rlhf.cluster.roles import Role
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.workers import roles_of
from tests.cluster.contract import WORKERS
from tests.end_to_end.running import QUICKSTART
from tests.pace import scaled

BYSTANDER = Role(name="bystander", count=1, cpus=0.1, factory=f"{WORKERS}:Calculator")


async def asked(roles: list[Role], address: str, nodes: int, log_dir: Path) -> dict[str, tuple[str, list[str]]]:
    """Each worker's node, and the GPUs that its process sees."""
    cluster = RayCluster(address=address, nodes=nodes)
    try:
        await cluster.start(roles, log_dir)
        for role in roles:
            await cluster.spawn(role.name, lambda index: {})
        found = {}
        for placed in cluster.placements:
            worker = cluster.workers(placed.role.name)[placed.index]
            shown = await worker.call("variable", "CUDA_VISIBLE_DEVICES", timeout_seconds=scaled(30))
            found[placed.worker] = (placed.node, [gpu for gpu in shown.split(",") if gpu])
        return found
    finally:
        await cluster.stop()


def main() -> None:
    """Cheap workers in the real roles, and one without GPUs beside them."""
    address, nodes, log_dir, *overrides = sys.argv[1:]
    roles = roles_of(load_recipe(QUICKSTART, overrides).recipe)
    cheap = [replace(role, factory=BYSTANDER.factory, imports="") for role in roles]
    print(json.dumps(asyncio.run(asked([*cheap, BYSTANDER], address, int(nodes), Path(log_dir)))))


if __name__ == "__main__":
    main()
