"""A Ray cluster of several nodes on this machine: `ray start` for each, with ports, token and folder of its own."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlhf.apps.deploy.ray_start import linked_interpreter
from rlhf.cluster.interfaces import own_address
from rlhf.cluster.ray_connection import LEAST_STORE_BYTES, PRIVATE_RAY
from tests.pace import scaled

ROOT = Path(__file__).parents[1]
START_SECONDS, STOP_SECONDS = scaled(120), scaled(60)


@dataclass(frozen=True)
class RayletCluster:
    """A running cluster: where its head listens, and the environment of whoever may join it. Nodes end with `nodes`."""

    address: str
    environment: Mapping[str, str]
    temp: Path
    nodes: ExitStack
    gpus: int = 0

    def add(self, cpus: int) -> None:
        """Start one more node."""
        arguments = ("--address", self.address)
        self.nodes.enter_context(ray_start(arguments, cpus, self.temp / "node", self.environment, self.gpus))


@contextmanager
def raylets(*cpus: int, gpus: int = 0) -> Iterator[RayletCluster]:
    """A cluster whose nodes have so many cores each, the head's first; and so many GPUs each, which need not be there:
    Ray only counts them."""
    temp = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    environment = os.environ | PRIVATE_RAY | {"RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT)}
    try:
        with ExitStack() as nodes:
            head = ("--head", "--port", "0", "--include-dashboard", "false")
            said = nodes.enter_context(ray_start(head, cpus[0], temp / "head", environment, gpus))
            found = re.search(r"--address='([^']+)'", said)
            assert found, said
            cluster = RayletCluster(found[1], environment, temp, nodes, gpus)
            for more in cpus[1:]:
                cluster.add(more)
            yield cluster
    finally:
        shutil.rmtree(temp, ignore_errors=True)


@contextmanager
def ray_start(
    words: tuple[str, ...], cpus: int, temp: Path, environment: Mapping[str, str], gpus: int = 0
) -> Iterator[str]:
    """One node, until the end of the block. What it said when it had started."""
    command = [
        linked_interpreter(Path(tempfile.mkdtemp(dir=temp.parent))),
        "-m", "ray.scripts.scripts", "start", "--block", *words,
        "--node-ip-address", own_address(), "--num-cpus", str(cpus), "--num-gpus", str(gpus),
        "--dashboard-agent-listen-port", "0", "--object-store-memory", str(LEAST_STORE_BYTES),
        "--temp-dir", str(temp),
    ]  # fmt: skip
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            yield _once_started(process, Path(output.name))
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)


def _once_started(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while "Ray runtime started" not in (said := output.read_text()) or "--block" not in said:
        assert process.poll() is None, said
        assert time.monotonic() < deadline, f"ray start took more than {START_SECONDS} s: {said}"
        time.sleep(0.1)
    return said
