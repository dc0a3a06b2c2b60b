"""The controller's handle to a worker in a Ray actor: calls with deadlines, and worker deaths with causes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any, Never

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from rlhf.cluster.exits import exit_cause, watch_exit
from rlhf.cluster.host import value_of
from rlhf.errors import DeadlinePassed, WorkerDied, WorkerFailed

EXIT_GRACE_SECONDS = 5.0
"""Ray reports a broken connection before the kernel has ended the process, and before its parent has reaped it."""
NODE_DIED = "its node has died"
"""Text in Ray's report of an actor whose node was lost; the node id that follows it is not useful to a reader."""


class RayWorker:
    """A worker process. `name` is its role and index, `node` where it was placed."""

    def __init__(self, name: str, node: str, actor: Any) -> None:
        self.name = name
        self._node, self._actor = node, actor
        self._pidfd: int | None = None
        self._live = actor.live.remote()

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        answer = await self._wait(self._actor.call.remote(method, args, kwargs), method, timeout_seconds)
        return value_of(self.name, method, answer)

    async def arrive(self, this_node: str, timeout_seconds: float) -> None:
        """Wait until the process runs; from then on the cause of its death can be reported."""
        node, pid = await self._wait(self._actor.process.remote(), "start", timeout_seconds)
        self._pidfd = watch_exit(pid) if node == this_node else None

    async def gpus(self, timeout_seconds: float) -> list[str]:
        """The GPUs that the process sees, as CUDA_VISIBLE_DEVICES names them."""
        return list(await self._wait(self._actor.gpus.remote(), "start", timeout_seconds))

    async def construct(self, kwargs: Mapping[str, Any], timeout_seconds: float) -> None:
        value_of(self.name, "start", await self._wait(self._actor.construct.remote(kwargs), "start", timeout_seconds))

    async def until_death(self) -> Never:
        """Wait for the process to end, then raise `WorkerDied`."""
        try:
            await asyncio.wrap_future(self._live.future())
        except RayError as error:
            raise await self._death(error) from None
        raise WorkerDied(self.name, "its process answered the call that never ends")

    async def end(self, timeout_seconds: float) -> None:
        """Call the object's `close` if it has one, then end the process whether or not that succeeded."""
        with contextlib.suppress(WorkerDied, WorkerFailed, DeadlinePassed):
            await self._wait(self._actor.close.remote(), "close", timeout_seconds)
        ray.kill(self._actor, no_restart=True)
        if self._pidfd is not None:
            await _until_readable(self._pidfd, timeout_seconds)
            os.close(self._pidfd)
            self._pidfd = None

    async def _wait(self, reference: Any, method: str, timeout_seconds: float) -> Any:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(reference.future()), timeout_seconds)
        except TimeoutError:
            raise DeadlinePassed(f"{self.name}.{method}", timeout_seconds) from None
        except RayActorError as error:
            raise await self._death(error) from None
        except RayError as error:
            raise WorkerFailed(self.name, method, str(error).strip().splitlines()[-1], str(error)) from None

    async def _death(self, error: RayError) -> WorkerDied:
        if self._pidfd is not None and (cause := await exit_cause(self._pidfd, EXIT_GRACE_SECONDS)):
            return WorkerDied(self.name, cause)
        told = _first_cause(str(error))
        if isinstance(error, ActorUnavailableError):
            told = f"its node {self._node} does not answer"
        return WorkerDied(self.name, f"its node {self._node} is lost" if NODE_DIED in told else told)


def _first_cause(text: str) -> str:
    """Ray's own report, without its table of ids."""
    lines = [line.strip() for line in text.splitlines() if line and not line.startswith("\t")]
    return lines[-1] if lines else "its process ended"


async def _until_readable(descriptor: int, timeout_seconds: float) -> bool:
    """Wait until a pidfd reports that its process has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    watched = os.dup(descriptor)
    loop.add_reader(watched, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), timeout_seconds)
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(watched)
        os.close(watched)
    return True
