"""A supervised program for `test_clean_end`: a Ray worker litters, then the program waits until it is ended.

Arguments: the folder for its logs and for `ready`, which holds the ids of its guard and its program; the
name of the shared memory that the worker makes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rlhf.cluster.supervisor import supervise


def main() -> int:
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
    return 0


async def run(folder: Path, memory: str) -> None:
    from rlhf.cluster.ray_cluster import RayCluster
    from rlhf.cluster.roles import Role

    litterer = Role(name="litterer", count=1, cpus=0.5, factory="tests.cluster.workers:Litterer")
    cluster = RayCluster()
    try:
        await cluster.start([litterer], folder)
        (worker,) = await cluster.spawn("litterer", lambda index: {})
        await worker.call("litter", memory, timeout_seconds=20)
        announce(folder)
        await cluster.watch()
    finally:
        await cluster.stop()


def announce(folder: Path) -> None:
    (folder / "writing").write_text(f"{os.getppid()} {os.getpid()}")
    (folder / "writing").rename(folder / "ready")


if __name__ == "__main__":
    sys.exit(supervise(main))
