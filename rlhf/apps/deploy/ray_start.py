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
from dataclasses import dataclass
from pathlib import Path

from rlhf.apps.deploy.heartbeat import HEARTBEAT
from rlhf.cluster.ray_connection import PRIVATE_RAY, object_store_bytes
from rlhf.errors import DeadlinePassed, NodeFailed

BELOW_EPHEMERAL = range(20_000, 32_000)
"""Ports outside the range from which the kernel assigns ports."""
LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RayStartOptions:
    """Settings of one node. `head` is the address of the head, None for the head itself."""

    head: str | None
    address: str
    cpus: int
    gpus: int
    temp_dir: Path


def ray_start_command(node: RayStartOptions) -> list[str]:
    """Return the `ray start` command. The kernel chooses every port except that of Ray's clients."""
    role = ["--address", node.head] if node.head else ["--head", "--port", "0", *client_port(), "--no-monitor"]
    quiet = ["--include-dashboard", "false"] if node.head is None else []
    return [
        *(linked_interpreter(node.temp_dir), "-m", "ray.scripts.scripts", "start", "--block", *role, *quiet),
        *("--node-ip-address", node.address, "--node-name", node_name(), "--temp-dir", str(node.temp_dir)),
        *("--num-cpus", str(node.cpus), "--num-gpus", str(node.gpus)),
        *("--object-store-memory", str(object_store_bytes())),
        *("--node-manager-port", "0", "--object-manager-port", "0", "--dashboard-agent-listen-port", "0"),
        *("--include-log-monitor", "false", "--disable-usage-stats", "--log-color", "false"),
    ]


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


def client_port() -> list[str]:
    """Return a free port for Ray's client server, which nothing uses here, and which takes port 10001 otherwise."""
    ports = random.SystemRandom().sample(BELOW_EPHEMERAL, 100)
    return ["--ray-client-server-port", str(next(port for port in ports if _is_free(port)))]


class RayProcess:
    """The child process and its output. SIGTERM is blocked in all of Ray: SLURM sends it to every process of a node
    when it preempts a job, which then has some time to save. `rlhf node` ends Ray by SIGKILL."""

    def __init__(self, node: RayStartOptions) -> None:
        self._node = node
        self._output = node.temp_dir / "start.log"
        environment = {**os.environ, **PRIVATE_RAY, **HEARTBEAT, "PYTHONUNBUFFERED": "1"}
        environment.pop("RAY_ADDRESS", None)
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a child inherits the mask
        try:
            with self._output.open("wb") as output:
                self._child = subprocess.Popen(
                    ray_start_command(node), stdout=output, stderr=subprocess.STDOUT, env=environment
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)

    def until_up(self, seconds: float, give_up: Callable[[], bool]) -> str | None:
        """Wait until the node has joined its cluster. Returns the head's address; None if `give_up` is true first.
        Raises `NodeFailed`, `DeadlinePassed`."""
        address_file, deadline = self._node.temp_dir / "ray_current_cluster", time.monotonic() + seconds
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
        if self._child.poll() is not None:
            raise NodeFailed(self._cause())

    def _cause(self) -> str:
        """Return the child's exit code and its last line of output."""
        lines = [line.strip() for line in self._output.read_text(errors="replace").split("\n") if line.strip()]
        return f"Ray ended with code {self._child.returncode}: {lines[-1] if lines else 'it printed nothing'}"


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
