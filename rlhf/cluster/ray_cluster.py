"""Runs workers as Ray actors, in a new Ray instance on this machine or in an existing cluster."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Never

from rlhf.cluster.fork_client import SOCKET
from rlhf.cluster.fork_server import ForkServer, forked_by_ray, forked_environment
from rlhf.cluster.local import thread_environment
from rlhf.cluster.loop_thread import BackgroundLoop
from rlhf.cluster.machine import this_machine
from rlhf.cluster.placement import Placement, Reservation, nodes_of, placement_table
from rlhf.cluster.ray_connection import join_ray, keep_our_sigterm, ray_module, start_ray
from rlhf.cluster.ray_host import RayHost
from rlhf.cluster.roles import Resources, Role, check_resources, demand, roles_with_room
from rlhf.cluster.supervisor import socket_folder
from rlhf.errors import DeadlinePassed, PlacementError

CLOSE_SECONDS = 10.0
SHUTDOWN_SECONDS = 20.0
JOIN_SECONDS = 60.0
"""Least deadline to join a cluster that answers: Ray waits longer on a machine that is not one of its nodes."""
GRACE_SECONDS = 5.0
"""Added to the time that Ray itself waits."""
LIST_SECONDS = 10.0
POLL_SECONDS = 0.5


class RayCluster:
    """One Ray actor process for every worker."""

    def __init__(self, address: str | None = None, placement_timeout_seconds: float = 60.0, nodes: int = 1) -> None:
        """Join the cluster at `address` once it has `nodes` nodes; start a new one on this machine if `address` is
        None."""
        self._address, self._nodes = address, nodes
        self._head: str | None = None
        self._placement_timeout_seconds = placement_timeout_seconds
        self._temp_dir: Path | None = None
        self._forks: ForkServer | None = None
        self._connected = False
        self._roles: dict[str, Role] = {}
        self._workers: dict[str, list[Any]] = {}
        self._kwargs_of: dict[str, Callable[[int], Mapping[str, Any]]] = {}
        self._log_dir = Path()
        self._launches: Counter[str] = Counter()
        self._reservation: Reservation | None = None
        # Ray asks the kernel to kill its processes when the thread that started them ends; this one stays.
        self._thread = BackgroundLoop("Ray's blocking calls")
        self.placements: list[Placement] = []

    async def start(
        self, roles: Sequence[Role], log_dir: Path, report: Callable[[str], None] = lambda table: None
    ) -> None:
        """Start or join Ray, wait for its nodes, reserve the resources and start one process per worker.

        `report` receives the table of workers as Ray has placed them. Raises `PlacementError` when the cluster has too
        little, or does not provide it in time.
        """
        deadline = time.monotonic() + self._placement_timeout_seconds
        if self._address is None:
            check_resources(roles, [this_machine()])
            await self._start_ray(roles, log_dir)
        else:
            await self._join(self._address)
        keep_our_sigterm()
        nodes = await self._wait_for_nodes(deadline, all_needed=all(role.least is None for role in roles))
        wanted, roles = roles, roles_with_room(roles, list(nodes.values()))
        for role, full in zip(roles, wanted, strict=True):
            if role.count < full.count:
                report(f"{len(nodes)} of {self._nodes} nodes: {role.count} of {full.count} {role.name}")
        check_resources(roles, list(nodes.values()))
        self._roles = {role.name: role for role in roles}
        await self._reserve(roles, nodes)
        report(placement_table(self.placements))
        self._log_dir = log_dir.absolute()
        await self._launch()

    async def spawn(self, role: str, kwargs_of: Callable[[int], Mapping[str, Any]]) -> list[Any]:
        """Construct the role's objects concurrently and wait for all of them, within its `start_timeout_seconds`."""
        here, seconds = ray_module().get_runtime_context().get_node_id(), self._roles[role].start_timeout_seconds
        workers, self._kwargs_of[role] = self._workers[role], kwargs_of
        await asyncio.gather(*(worker.arrive(here, seconds) for worker in workers))
        await asyncio.gather(*(worker.construct(kwargs_of(i), seconds) for i, worker in enumerate(workers)))
        return workers

    async def replace(self, worker: Any) -> Any:
        """Kill a worker's process, and construct another in its bundle, with the next free index; where that fails, the
        place is still the worker's."""
        await worker.kill(CLOSE_SECONDS)
        role, here = worker.placed.role, ray_module().get_runtime_context().get_node_id()
        new = self._launched(replace(worker.placed, index=self._launches[role.name]), None)
        with contextlib.ExitStack() as failing:
            failing.callback(new.abandon)
            await new.arrive(here, role.start_timeout_seconds)
            await new.construct(self._kwargs_of[role.name](new.placed.index), role.start_timeout_seconds)
            failing.pop_all()
        workers = self._workers[role.name]
        workers[workers.index(worker)] = new
        return new

    async def remove(self, worker: Any) -> None:
        """End a worker that is not replaced."""
        await worker.end(CLOSE_SECONDS)

    def workers(self, role: str) -> list[Any]:
        return self._workers[role]

    async def watch(self) -> Never:
        """Wait until any worker ends that is not replaced, then raise `WorkerDied` with its name and cause."""
        watched = [worker for worker in self._all() if not worker.placed.role.replaced]
        if not watched:
            await asyncio.Event().wait()  # forever, as its caller expects: nothing here can end the run
        watching = [asyncio.ensure_future(worker.until_death()) for worker in watched]
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
            raise done.pop().result()
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def stop(self) -> None:
        """End every worker and, if it was started here, Ray itself. Bounded in time; may be called after any
        failure."""
        await asyncio.gather(*(worker.end(CLOSE_SECONDS) for worker in self._all()), return_exceptions=True)
        self._workers.clear()
        if self._connected:
            with contextlib.suppress(DeadlinePassed):
                await self._thread.call("the end of Ray", partial(_disconnect, self._reservation), SHUTDOWN_SECONDS)
        self._reservation, self._connected = None, False
        if self._forks:
            self._forks.stop()
        if self._temp_dir:
            shutil.rmtree(self._temp_dir, ignore_errors=True)

    def _all(self) -> list[Any]:
        return [worker for workers in self._workers.values() for worker in workers]

    async def _start_ray(self, roles: Sequence[Role], log_dir: Path) -> None:
        """Start our own Ray instance, and a fork server for its workers, which makes their imports meanwhile."""
        self._temp_dir = socket_folder("ray-")
        environment = forked_environment(roles)
        if environment is not None and SOCKET not in os.environ:
            imports = dict.fromkeys(role.imports for role in roles if role.imports)
            self._forks = ForkServer(self._temp_dir, imports, environment, log_dir / "forks.log")
        self._connected = True
        starting = partial(start_ray, self._temp_dir)
        seconds = self._placement_timeout_seconds
        try:
            await self._thread.call("Ray's start", starting, seconds)
        except DeadlinePassed:
            raise PlacementError(
                f"Ray did not start within {seconds:g} s; if the machine is busy, raise "
                "cluster.placement_timeout_seconds, or train without Ray by cluster.kind=local"
            ) from None

    async def _join(self, address: str) -> None:
        seconds = max(JOIN_SECONDS, self._placement_timeout_seconds)
        try:
            self._head = await self._thread.call("a node", partial(join_ray, address, seconds / 2), seconds)
        except DeadlinePassed:
            raise PlacementError(
                f"no node of the Ray cluster at {address!r} answers on this machine within {seconds:g} s; "
                "start one here, or train on one of its nodes"
            ) from None
        self._connected = True

    async def _wait_for_nodes(self, deadline: float, *, all_needed: bool) -> dict[str, Resources]:
        """Wait until the cluster has the nodes that the recipe requests; return them by id. If fewer have joined in
        time, return those, or raise `PlacementError` if `all_needed`."""
        while True:
            nodes = nodes_of(await self._thread.call("the list of Ray's nodes", ray_module().nodes, LIST_SECONDS))
            if len(nodes) >= self._nodes or (time.monotonic() > deadline and not all_needed):
                return nodes
            if time.monotonic() > deadline:
                names = ", ".join(node.node for node in nodes.values())
                raise PlacementError(
                    f"{len(nodes)} of {self._nodes} nodes have joined the Ray cluster at {self._address!r} within "
                    f"{self._placement_timeout_seconds:g} s ({names}); start the others, or lower cluster.nodes"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _reserve(self, roles: Sequence[Role], nodes: Mapping[str, Resources]) -> None:
        """Reserve the resources and read the placements. Raises `PlacementError`."""
        seconds = self._placement_timeout_seconds
        self._reservation = reservation = Reservation(roles, nodes)
        waiting = partial(reservation.is_ready, seconds)
        if not await self._thread.call("Ray's placement groups", waiting, 2 * seconds + GRACE_SECONDS):
            free = await self._thread.call("the free resources", ray_module().available_resources, LIST_SECONDS)
            wanted = [f"{demand(roles, 'core')}", demand([role for role in roles if role.own_gpus], "GPU")]
            raise PlacementError(
                f"Ray did not find room for all workers within {seconds:g} s ({'; '.join(filter(None, wanted))}): the "
                f"{len(nodes)} nodes have {free.get('CPU', 0):g} cores and {free.get('GPU', 0):g} GPUs free, and each "
                "worker needs one node; wait until other programs end, or ask for fewer or smaller workers"
            )
        self.placements = reservation.placements({id: node.node for id, node in nodes.items()})

    async def _launch(self) -> None:
        """Start every worker's process; those that share GPUs when the GPUs of the others are known."""
        launched: dict[str, Any] = {}
        for placed in sorted(self.placements, key=lambda placed: bool(placed.beside and placed.role.gpus)):
            gpus: list[str] | None = None
            if placed.beside and placed.role.gpus:
                hosts = (launched[name].gpus(self._placement_timeout_seconds) for name in placed.beside)
                gpus = [gpu for gpus_of_host in await asyncio.gather(*hosts) for gpu in gpus_of_host]
            worker = self._launched(placed, gpus)
            launched[placed.worker] = worker
            self._workers.setdefault(placed.role.name, []).append(worker)

    def _launched(self, placed: Placement, gpus: Sequence[str] | None) -> Any:
        """Start one worker's process in its bundle. It sees the `gpus` of other workers, or by default those that Ray
        has given to it."""
        from rlhf.cluster.ray_worker import RayWorker

        self._launches[placed.role.name] += 1
        log_file = self._log_dir / f"{placed.worker}.log"
        ray, role, forks = ray_module(), placed.role, self._forks_of(placed.role)
        in_bundle = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        named = type(f"rlhf {placed.worker}", (RayHost,), {"__module__": RayHost.__module__})  # as `ps` shows it
        host = ray.remote(named).options(
            num_cpus=role.cpus,
            num_gpus=role.own_gpus,
            max_concurrency=1000,
            runtime_env=forked_by_ray(forks) if forks else None,
            scheduling_strategy=in_bundle(placed.group, placement_group_bundle_index=placed.bundle),
        )
        # Variables are passed to the actor: in Ray's `runtime_env` they cost a worker two process starts in a row.
        environment = thread_environment([role]) | dict(role.env)
        actor = host.remote(
            role.factory, role.imports, role.concurrency, environment, role.python_path, str(log_file), self._head, gpus
        )
        return RayWorker(placed, actor)

    def _forks_of(self, role: Role) -> Path | None:
        """Return the socket of the fork server for this role's workers: ours, or that of the process that started
        this one."""
        if not role.imports or self._address is not None:
            return None
        given = os.environ.get(SOCKET)
        return self._forks.socket if self._forks else Path(given) if given else None


def _disconnect(reservation: Reservation | None) -> None:
    ray = ray_module()
    if reservation and ray.is_initialized():
        reservation.remove()
    ray.shutdown()
