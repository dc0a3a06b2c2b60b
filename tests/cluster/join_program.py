"""Joins a cluster, places three workers, and prints what they and their placements say: ADDRESS NODES SECONDS LOGS."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from rlhf.cluster.ray_cluster import RayCluster
from rlhf.cluster.roles import Role
from rlhf.errors import RlhfError
from tests.cluster.contract import WORKERS
from tests.pace import scaled

CALCULATORS = Role(name="calculator", count=3, cpus=1, factory=f"{WORKERS}:Calculator")
ASKED = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


async def told(address: str, nodes: int, seconds: float, logs: Path) -> dict[str, Any]:
    cluster = RayCluster(address, placement_timeout_seconds=seconds, nodes=nodes)
    try:
        await cluster.start([CALCULATORS], logs)
        workers = await cluster.spawn("calculator", lambda index: {"index": index})
        return {
            "places": [placed.node for placed in cluster.placements],
            "nodes": [await worker.call("ray_node", timeout_seconds=30) for worker in workers],
            "interfaces": [
                [await worker.call("variable", name, timeout_seconds=scaled(30)) for name in ASKED]
                for worker in workers
            ],
        }
    except RlhfError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        await cluster.stop()


def main(address: str, nodes: str, seconds: str, logs: str) -> None:
    print(json.dumps(asyncio.run(told(address, int(nodes), float(seconds), Path(logs)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
