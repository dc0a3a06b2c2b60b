"""A cluster with every worker in this process, without Ray, so that a debugger works."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from rlhf.cluster.host import TimedOutcome, WorkerHost, outcome_of, traced_value, value_of
from rlhf.cluster.machine import VISIBLE, this_machine
from rlhf.cluster.roles import Role, check_resources, role_table, worker_name
from rlhf.cluster.worker import Worker
from rlhf.errors import DeadlinePassed, PlacementError, WorkerDied

CLOSE_SECONDS = 10.0


class LocalWorker:
    """A worker whose object lives in this process."""

    def __init__(self, name: str, host: WorkerHost) -> None:
        self.name = name
        self._host = host

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        start, began = time.time(), time.perf_counter()
        running = self._host.begin(method, args, kwargs)
        try:
            done, _ = await asyncio.wait([running], timeout=timeout_seconds)
        finally:
            running.cancel()
        if not done:
            raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds)
        timed = TimedOutcome(outcome_of(running), start, time.perf_counter() - began)
        return traced_value(self.name, method, timed)

    async def construct(self, kwargs: Mapping[str, Any], timeout_seconds: float) -> None:
        await self._wait(self._host.construct(kwargs), "start", timeout_seconds)

    async def until_death(self) -> WorkerDied:
        while True:
            await asyncio.sleep(3600)

    async def close(self) -> None:
        await self._wait(self._host.close(), "close", CLOSE_SECONDS)

    async def _wait(self, outcome: Coroutine[Any, Any, Any], method: str, timeout_seconds: float) -> Any:
        try:
            return value_of(self.name, method, await asyncio.wait_for(outcome, timeout_seconds))
        except TimeoutError:
            raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds) from None


class LocalCluster:
    """The same calls as a cluster of processes. A worker cannot die unless this process dies."""

    def __init__(self) -> None:
        self._roles: dict[str, Role] = {}
        self._workers: dict[str, list[LocalWorker]] = {}
        self._visible = os.environ.get(VISIBLE)

    async def start(
        self, roles: Sequence[Role], log_dir: Path, report: Callable[[str], None] = lambda table: None
    ) -> None:
        """Check that this machine has enough, and set the roles' environment variables here. Raises `PlacementError`,
        also if two roles' variables conflict."""
        check_resources(roles, [this_machine()])
        report(role_table(roles))
        os.environ.update(thread_environment(roles) | shared_environment(roles) | gpu_environment(roles))
        self._roles = {role.name: role for role in roles}

    async def spawn(self, role: str, kwargs_of: Callable[[int], Mapping[str, Any]]) -> list[LocalWorker]:
        """Construct the role's objects concurrently and wait for all of them."""
        wanted = self._roles[role]
        names = [worker_name(role, index) for index in range(wanted.count)]
        workers = [LocalWorker(name, WorkerHost(wanted.factory, wanted.concurrency)) for name in names]
        starting = (worker.construct(kwargs_of(i), wanted.start_timeout_seconds) for i, worker in enumerate(workers))
        await asyncio.gather(*starting)
        self._workers[role] = workers
        return workers

    async def replace(self, worker: Worker) -> LocalWorker:
        raise PlacementError(f"{worker.name} runs in this process and cannot be restarted; use cluster.kind=ray")

    async def remove(self, worker: Worker) -> None:
        """Do nothing: no process ends."""

    def workers(self, role: str) -> list[LocalWorker]:
        return self._workers[role]

    async def watch(self) -> Never:
        while True:
            await asyncio.sleep(3600)

    async def stop(self) -> None:
        """Call every object's `close`, whether or not others fail, and show the GPUs that were visible before."""
        workers = [worker for role in self._workers.values() for worker in role]
        self._workers.clear()
        await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
        os.environ.pop(VISIBLE, None)
        os.environ.update({} if self._visible is None else {VISIBLE: self._visible})


def shared_environment(roles: Sequence[Role]) -> dict[str, str]:
    """Return one environment for all roles. Raises `PlacementError` naming a variable that two roles set
    differently."""
    owners: dict[str, Role] = {}
    for role in roles:
        for variable, value in role.env.items():
            owner = owners.setdefault(variable, role)
            if owner.env[variable] != value:
                raise PlacementError(
                    f"{owner.name} sets {variable}={owner.env[variable]} and {role.name} sets {variable}={value}, "
                    "which one process cannot hold; use cluster.kind=ray"
                )
    return {variable: owner.env[variable] for variable, owner in owners.items()}


def gpu_environment(roles: Iterable[Role]) -> dict[str, str]:
    """Return variables that hide all GPUs if no role asks for one: torch and vLLM would use the first, unreserved."""
    return {} if any(role.gpus for role in roles) else {VISIBLE: ""}


def thread_environment(roles: Iterable[Role]) -> dict[str, str]:
    """Return variables that limit thread pools to the threads of the largest worker; unlimited ones are much slower."""
    threads = str(max((role.threads for role in roles), default=1))
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
