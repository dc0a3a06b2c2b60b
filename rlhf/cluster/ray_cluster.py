"""Runs workers as Ray actors, in a new Ray instance on this machine or in an existing cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Never

from rlhf.cluster.blocking import BlockingCalls
from rlhf.cluster.forking.ray_worker import SOCKET
from rlhf.cluster.forking.started import ForkServer, forked_environment
from rlhf.cluster.machine import this_machine
from rlhf.cluster.object_store import shared_memory_bytes, store_bytes
from rlhf.cluster.plan import plan
from rlhf.cluster.quiet_ray import keep_our_sigterm, quiet_ray, ray_module
from rlhf.cluster.ray_joining import join_ray, too_few
from rlhf.cluster.ray_nodes import RayNode, living_nodes
from rlhf.cluster.ray_places import launch_ray_worker, reserve
from rlhf.cluster.resources import Placement, Plan, Role
from rlhf.cluster.tempdir import socket_folder
from rlhf.errors import DeadlinePassed

CLOSE_SECONDS = 10.0
SHUTDOWN_SECONDS = 20.0
GRACE_SECONDS = 5.0
"""Added to the time that Ray itself waits."""
LIST_SECONDS = 10.0
POLL_SECONDS = 0.5
PRIVATE_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_worker_niceness": "0",
}
"""A new Ray instance listens on the machine's address, so a token of this run protects it. Prestarted workers lack a
role's environment and would only use cores, so there are none. Ray's output about a dead worker is replaced by the one
line of `WorkerDied`. By default Ray lowers its workers' priority (nice 15), but they do all the work of a run."""


class RayCluster:
    """One Ray actor process for every placement."""

    def __init__(
        self,
        address: str | None = None,
        placement_timeout_seconds: float = 60.0,
        nodes: int = 1,
        object_store_bytes: int = 0,
    ) -> None:
        """Joins the cluster at `address` once it has `nodes` nodes; starts a new one on this machine if `address` is
        None, whose object store has at least `object_store_bytes` if the machine's shared memory does."""
        self._object_store_bytes = object_store_bytes
        self._address, self._nodes = address, nodes
        self._head: str | None = None
        self._placement_timeout_seconds = placement_timeout_seconds
        self._temp_dir: Path | None = None
        self._forks: ForkServer | None = None
        self._roles: dict[str, Role] = {}
        self._workers: dict[str, list[Any]] = {}
        self._group: Any = None
        self._blocking = BlockingCalls()

    async def start(
        self, roles: Sequence[Role], log_dir: Path, tell: Callable[[Plan], None] = lambda plan: None
    ) -> Plan:
        """Start or join Ray, wait for its nodes, plan, reserve the resources and start one process per worker.

        A new Ray instance is started only after the plan is made; `tell` receives the plan before resources are
        reserved. Raises `PlacementError`, and `DeadlinePassed` when the cluster does not provide the resources in time.
        """
        if self._address is None:
            self._start_forks(plan(roles, [this_machine()]), roles, log_dir)
        deadline = time.monotonic() + self._placement_timeout_seconds
        starting = "Ray's start" if self._address is None else f"joining the Ray cluster at {self._address}"
        await self._blocking.run(starting, self._connect, self._placement_timeout_seconds)
        keep_our_sigterm()
        nodes = await self._gathered(deadline)
        planned = plan(roles, [node.resources for node in nodes])
        tell(planned)
        self._roles = {role.name: role for role in roles}
        await self._reserve(planned, {node.name: node.id for node in nodes})
        await self._launch(planned, log_dir.absolute())
        return planned

    async def spawn(self, role: str, kwargs_of: Callable[[int], Mapping[str, Any]]) -> list[Any]:
        """Construct the role's objects concurrently and wait for all of them, within its `start_timeout_seconds`."""
        here, seconds = ray_module().get_runtime_context().get_node_id(), self._roles[role].start_timeout_seconds
        workers = self._workers[role]
        await asyncio.gather(*(worker.arrive(here, seconds) for worker in workers))
        await asyncio.gather(*(worker.construct(kwargs_of(i), seconds) for i, worker in enumerate(workers)))
        return workers

    def workers(self, role: str) -> list[Any]:
        return self._workers[role]

    async def watch(self) -> Never:
        """Wait until any worker ends, then raise `WorkerDied` with its name and cause."""
        watching = [asyncio.ensure_future(worker.until_death()) for worker in self._all()]
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            raise next(error for error in (task.exception() for task in done) if error)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def stop(self) -> None:
        """End every worker and, if it was started here, Ray itself. Bounded in time; may be called after any
        failure."""
        await asyncio.gather(*(worker.end(CLOSE_SECONDS) for worker in self._all()), return_exceptions=True)
        self._workers.clear()
        with contextlib.suppress(DeadlinePassed):
            await self._blocking.run("the end of Ray", lambda: _disconnect(self._group), SHUTDOWN_SECONDS)
        self._group = None
        if self._forks:
            self._forks.stop()
        if self._temp_dir:
            shutil.rmtree(self._temp_dir, ignore_errors=True)

    def _all(self) -> list[Any]:
        return [worker for workers in self._workers.values() for worker in workers]

    def _start_forks(self, planned: Plan, roles: Sequence[Role], log_dir: Path) -> None:
        """Starts a fork server for workers of our own Ray instance; it makes their imports while Ray starts."""
        self._temp_dir = socket_folder("ray-")
        environment = forked_environment(planned, roles)
        if environment is not None and SOCKET not in os.environ:
            imports = dict.fromkeys(role.imports for role in roles if role.imports)
            self._forks = ForkServer(self._temp_dir, imports, environment, log_dir / "forks.log")

    def _connect(self) -> None:
        if self._address is not None:
            self._head = join_ray(self._address)
        elif self._temp_dir is not None:
            start_ray(self._temp_dir, self._object_store_bytes)

    async def _gathered(self, deadline: float) -> list[RayNode]:
        """The cluster's nodes, once there are as many as the recipe asks for. Raises `PlacementError`."""
        while len(nodes := await self._nodes_now()) < self._nodes:
            if time.monotonic() > deadline:
                names = [node.name for node in nodes]
                raise too_few(str(self._address), self._nodes, names, self._placement_timeout_seconds)
            await asyncio.sleep(POLL_SECONDS)
        return nodes

    async def _nodes_now(self) -> list[RayNode]:
        return await self._blocking.run("the list of Ray's nodes", living_nodes, LIST_SECONDS)

    async def _reserve(self, planned: Plan, ids: Mapping[str, str]) -> None:
        self._group = reserve(planned, ids)
        seconds = self._placement_timeout_seconds
        waiting = partial(self._group.wait, seconds)
        if not await self._blocking.run("Ray's placement group", waiting, seconds + GRACE_SECONDS):
            raise DeadlinePassed("the placement of all workers on the Ray cluster", seconds)

    async def _launch(self, planned: Plan, log_dir: Path) -> None:
        """Start every worker's process; those that share GPUs when the GPUs of the others are known."""
        launched: dict[str, Any] = {}
        for bundle, placement in sorted(enumerate(planned.placements), key=lambda item: _shares_gpus(item[1])):
            role = self._roles[placement.role]
            gpus = (
                await self._gpus_of([launched[name] for name in placement.beside]) if _shares_gpus(placement) else None
            )
            launched[placement.worker] = launch_ray_worker(
                self._group,
                bundle,
                placement,
                role,
                log_dir / f"{placement.worker}.log",
                head=self._head,
                forks=self._forks_of(role),
                gpus=gpus,
            )
            self._workers.setdefault(placement.role, []).append(launched[placement.worker])

    async def _gpus_of(self, hosts: Sequence[Any]) -> list[str]:
        """The GPUs of these workers together. Raises `WorkerDied`, `DeadlinePassed`."""
        asked = await asyncio.gather(*(worker.gpus(self._placement_timeout_seconds) for worker in hosts))
        return [gpu for gpus in asked for gpu in gpus]

    def _forks_of(self, role: Role) -> Path | None:
        """The socket of the fork server for this role's workers: ours, or that of the process that started this one."""
        if not role.imports or self._address is not None:
            return None
        given = os.environ.get(SOCKET)
        return self._forks.socket if self._forks else Path(given) if given else None


def _shares_gpus(placement: Placement) -> bool:
    return bool(placement.beside and placement.gpus)


@cache
def private_token() -> str:
    """One token for every Ray instance that this process starts, because a process reads its token only once."""
    return secrets.token_hex(32)


def start_ray(temp_dir: Path, object_store_bytes: int = 0) -> None:
    """Start a private Ray instance on this machine, with an object store of at least this size where there is room."""
    os.environ.update(PRIVATE_RAY | {"RAY_AUTH_TOKEN": private_token()})
    ray = quiet_ray()
    machine = this_machine()
    ray.init(
        address="local",
        num_cpus=int(machine.cpus),
        num_gpus=int(machine.gpus),
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=store_bytes(object_store_bytes, shared_memory_bytes()[1]),
        _temp_dir=str(temp_dir),
    )


def _disconnect(group: Any) -> None:
    ray = ray_module()
    if group is not None and ray.is_initialized():
        ray.util.remove_placement_group(group)
    ray.shutdown()
