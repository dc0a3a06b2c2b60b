"""The fork server, as seen by the process that starts it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rlhf.cluster.forking import ray_worker
from rlhf.cluster.local import gpu_environment, shared_environment, thread_environment
from rlhf.cluster.roles import Role
from rlhf.errors import PlacementError

END_SECONDS = 5.0


class ForkServer:
    """A fork server process that imports in the background; a fork request waits until the imports are done."""

    def __init__(self, folder: Path, imports: Iterable[str], environment: Mapping[str, str], log: Path) -> None:
        self.socket = folder / "forks"
        command = [sys.executable, "-m", "rlhf.cluster.forking.server", str(self.socket), str(os.getpid()), *imports]
        paths = os.pathsep.join(filter(None, sys.path))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env=os.environ | {"PYTHONPATH": paths} | dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End the server and every fork that is still running."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        self._process.kill()
        self._process.wait(END_SECONDS)


def forked_environment(roles: Sequence[Role]) -> dict[str, str] | None:
    """Return the environment of a fork server shared by all workers; None where they cannot share one.

    Variables and thread pools are read at import, so all roles must agree on them. CUDA does not work across a fork.
    """
    chosen = [role for role in roles if role.imports]
    if len({role.threads for role in chosen}) != 1 or any(role.gpus for role in chosen):
        return None
    try:
        return thread_environment(chosen) | shared_environment(chosen) | gpu_environment(chosen)
    except PlacementError:
        return None


def forked_by_ray(server: Path) -> dict[str, object]:
    """Ray's `runtime_env` for a worker that is forked from the server."""
    program = shlex.join([sys.executable, "-S", "-E", ray_worker.__file__])
    return {"py_executable": program, "env_vars": {ray_worker.SOCKET: str(server)}}
