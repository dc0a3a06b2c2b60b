"""The controller's side of a worker in a Ray actor: calls with deadlines, and worker deaths with causes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import struct
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError

from rlhf.cluster.host import traced_value, value_of
from rlhf.cluster.placement import Placement
from rlhf.errors import DeadlinePassed, WorkerDied, WorkerFailed

EXIT_GRACE_SECONDS = 5.0
"""Ray reports a broken connection before the kernel has ended the process, and before its parent has reaped it."""
PIDFD_INFO_EXIT = 1 << 3
PIDFD_INFO_SIZE = 64
PIDFD_GET_INFO = (3 << 30) | (PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11
EXIT_CODE_OFFSET = 60
"""`struct pidfd_info` of linux/pidfd.h: mask, cgroup id, eleven ids, exit code."""
POLL_SECONDS = 0.02
NODE_DIED = "its node has died"
"""Text in Ray's report of an actor whose node was lost; the node id that follows it is not useful to a reader."""


class RayWorker:
    """A worker process. `name` is its role and index, `placed` where it is."""

    def __init__(self, placed: Placement, actor: Any) -> None:
        self.name, self.placed = placed.worker, placed
        self._node, self._actor = placed.node, actor
        self._pidfd: int | None = None
        self._live = actor.live.remote()

    async def call(self, method: str, *args: Any, timeout_seconds: float, **kwargs: Any) -> Any:
        timed = await self._wait(self._actor.call.remote(method, args, kwargs), method, timeout_seconds)
        return traced_value(self.name, method, timed)

    async def gpus(self, timeout_seconds: float) -> list[str]:
        """Return the GPUs that the process sees, as CUDA_VISIBLE_DEVICES names them."""
        _, _, gpus = await self._wait(self._actor.process.remote(), "start", timeout_seconds)
        return list(gpus)

    async def arrive(self, this_node: str, timeout_seconds: float) -> None:
        """Wait until the process runs; from then on the cause of its death can be reported."""
        node, pid, _ = await self._wait(self._actor.process.remote(), "start", timeout_seconds)
        with contextlib.suppress(OSError):  # the process has ended already
            self._pidfd = os.pidfd_open(pid) if node == this_node else None

    async def construct(self, kwargs: Mapping[str, Any], timeout_seconds: float) -> None:
        value_of(self.name, "start", await self._wait(self._actor.construct.remote(kwargs), "start", timeout_seconds))

    async def until_death(self) -> WorkerDied:
        """Wait for the process to end, and return why."""
        try:
            await asyncio.wrap_future(self._live.future())
        except RayError as error:
            return await self._death(error)
        return WorkerDied(self.name, "its keep-alive call returned, so the process is ending")

    async def end(self, timeout_seconds: float) -> None:
        """Call the object's `close` if it has one, then end the process whether or not that succeeded."""
        with contextlib.suppress(WorkerDied, WorkerFailed, DeadlinePassed):
            await self._wait(self._actor.close.remote(), "close", timeout_seconds)
        await self.kill(timeout_seconds)

    def abandon(self) -> None:
        """End the process, and do not wait for it."""
        if self._pidfd is not None:  # Ray asks the process, and one that is stopped does not answer
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        ray.kill(self._actor, no_restart=True)

    async def kill(self, timeout_seconds: float) -> None:
        """End the process at once, and wait until it has ended; no effect the second time."""
        self.abandon()
        if self._pidfd is not None:
            deadline = time.monotonic() + timeout_seconds
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            while not ended.poll(0) and time.monotonic() < deadline:
                await asyncio.sleep(POLL_SECONDS)
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
        """Name the cause: as the kernel reports it, else the last line of Ray's report before its table of ids."""
        if self._pidfd is not None and (cause := await exit_cause(self._pidfd, EXIT_GRACE_SECONDS)):
            return WorkerDied(self.name, cause)
        if isinstance(error, ActorUnavailableError):
            return WorkerDied(self.name, f"its node {self._node} does not answer")
        lines = [line.strip() for line in str(error).splitlines() if line and not line.startswith("\t")]
        cause = lines[-1] if lines else "its process ended"
        return WorkerDied(self.name, f"its node {self._node} is lost" if NODE_DIED in cause else cause)


async def exit_cause(pidfd: int, timeout_seconds: float) -> str | None:
    """Return `killed by SIGKILL` or `exited with code 3`, or None if the process has not ended in time or the kernel
    does not report it.

    Kernels from 6.15 on report the exit once the parent has reaped the process, a moment after its end.
    """
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        info = bytearray(struct.pack("=Q", PIDFD_INFO_EXIT).ljust(PIDFD_INFO_SIZE, b"\0"))
        try:
            fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
        except OSError:
            return None
        if struct.unpack_from("=Q", info)[0] & PIDFD_INFO_EXIT:
            status: int = struct.unpack_from("=i", info, EXIT_CODE_OFFSET)[0]
            if os.WIFSIGNALED(status):
                return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            return f"exited with code {os.waitstatus_to_exitcode(status)}"
        await asyncio.sleep(POLL_SECONDS)
    return None
