"""Runs `ray start` in a child process: one node of a cluster, on ports that do not collide with other programs."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlhf.apps.deploy.heartbeat import HEARTBEAT
from rlhf.cluster.ray_connection import PRIVATE_RAY, object_store_bytes
from rlhf.cluster.supervisor import socket_folder
from rlhf.errors import DeadlinePassed, NodeFailed

BELOW_EPHEMERAL = range(20_000, 32_000)
"""Ports outside the range from which the kernel assigns ports."""
LOOK_SECONDS = 0.2


def linked_interpreter(folder: Path) -> str:
    """Return the path of this interpreter, by a link in `folder` where it has a space: Ray puts it unquoted into shell
    commands and LD_PRELOAD."""
    if " " not in sys.executable:
        return sys.executable
    link = folder / "python"
    link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def node_name() -> str:
    """SLURM's name of this node, because several nodes may be on one machine; else the machine's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def client_port() -> int:
    """Return a free port for Ray's client server, which nothing uses here, and which takes port 10001 otherwise."""
    for port in random.SystemRandom().sample(BELOW_EPHEMERAL, 100):
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("0.0.0.0", port))
            return port
    raise NodeFailed("none of 100 ports is free")


class RayProcess:
    """The child process and its output. It joins the cluster of the head at an address, or without one it is the head;
    the kernel chooses every port except that of Ray's clients. SIGTERM is blocked in all of Ray: SLURM sends it to
    every process of a node when it preempts a job, which then has some time to save. `rlhf node` ends Ray by SIGKILL.
    """

    def __init__(self, head: str | None, *, address: str, cpus: int, gpus: int) -> None:
        self._folder = socket_folder("ray-")
        self._output = self._folder / "start.log"
        own = ["--head", "--port", "0", "--ray-client-server-port", str(client_port()), "--no-monitor"]
        role = ["--address", head] if head else [*own, "--include-dashboard", "false"]
        command = [
            *(linked_interpreter(self._folder), "-m", "ray.scripts.scripts", "start", "--block", *role),
            *("--node-ip-address", address, "--node-name", node_name(), "--temp-dir", str(self._folder)),
            *("--num-cpus", str(cpus), "--num-gpus", str(gpus), "--object-store-memory", str(object_store_bytes())),
            *("--node-manager-port", "0", "--object-manager-port", "0", "--dashboard-agent-listen-port", "0"),
            *("--include-log-monitor", "false", "--disable-usage-stats", "--log-color", "false"),
        ]
        environment = {**os.environ, **PRIVATE_RAY, **HEARTBEAT, "PYTHONUNBUFFERED": "1"}
        environment.pop("RAY_ADDRESS", None)
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a child inherits the mask
        try:
            with self._output.open("wb") as output:
                self._child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)

    def until_up(self, seconds: float, give_up: Callable[[], bool]) -> str | None:
        """Wait until the node has joined its cluster. Returns the head's address; None if `give_up` is true first.
        Raises `NodeFailed`, `DeadlinePassed`."""
        address_file, deadline = self._folder / "ray_current_cluster", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if give_up():
                return None
            if address_file.is_file() and (address := address_file.read_text().strip()):
                return address
            self.check()
            time.sleep(LOOK_SECONDS)
        raise DeadlinePassed("the start of Ray on this node", seconds)

    def check(self) -> None:
        """Raise `NodeFailed` when the child has ended."""
        if (code := self._child.poll()) is not None:
            lines = [line.strip() for line in self._output.read_text(errors="replace").split("\n") if line.strip()]
            raise NodeFailed(f"Ray ended with code {code}: {lines[-1] if lines else 'it printed nothing'}")
