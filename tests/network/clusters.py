"""A Ray cluster over two hosts in namespaces, by `rlhf node`, and trainings on it."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, environment
from tests.end_to_end.test_clean_ends import MARK, until
from tests.network.namespaces import Namespace

END_SECONDS = 60
PLAN = (
    *SMALL, "model.warmup=null", "data.eval=null", "cluster.nodes=2", "cluster.learner_placement=spread",
    "trainer.deepspeed.ranks=2", "trainer.deepspeed.cpus_per_rank=1", "rollout.cpus_per_engine=1",
    "cluster.placement_timeout_seconds=120", "run.max_restarts=0",
)  # fmt: skip
"""A rank on each host, and the engine on the second: batches, gradients and weights all cross the cable."""
Process = subprocess.Popen[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Two nodes, the head's host first. `folder` holds what they say, and all runs."""

    hosts: tuple[Namespace, Namespace]
    nodes: tuple[Process, Process]
    folder: Path
    variables: dict[str, str]

    def train(self, run: str, *overrides: str) -> Process:
        """Start `rlhf train` on the head's host; its output goes to `RUN.out` and `RUN.err`."""
        places = (f"run.dir={self.folder / run}", f"model.cache_dir={self.folder / 'models'}")
        words = ("train", str(QUICKSTART), *places, *PLAN, *overrides, "--rendezvous", self.folder / "head.json")
        return started(self.hosts[0], self.folder / run, self.variables, *words)

    def end(self) -> list[int]:
        """Tell both nodes to end, the worker first; their exit codes."""
        for node in reversed(self.nodes):
            node.send_signal(signal.SIGTERM)
        return [node.wait(END_SECONDS) for node in self.nodes]

    def said(self, name: str) -> str:
        return (self.folder / name).read_text()


@contextmanager
def cluster(hosts: tuple[Namespace, Namespace], folder: Path) -> Iterator[Cluster]:
    """Nodes that are joined, or about to be: a training waits for them."""
    variables = environment() | {
        MARK: str(folder), "RLHF_RUN_ID": folder.name, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)
    }  # fmt: skip
    place, nodes = ("--rendezvous", folder / "head.json", "--gpus", "0"), []
    try:
        for host, cores, role in zip(hosts, (1, 2), ("--head", ""), strict=True):
            more = ("--cpus", cores, "--interface", host.interface, *filter(None, [role]))
            nodes.append(started(host, folder / host.name, variables, "node", *place, *more))
        yield Cluster(hosts=hosts, nodes=(nodes[0], nodes[1]), folder=folder, variables=variables)
    finally:
        for node in nodes:
            node.terminate()
        until(lambda: all(node.poll() is not None for node in nodes), END_SECONDS)


def started(host: Namespace, output: Path, variables: dict[str, str], *words: object) -> Process:
    """`rlhf WORDS` on a host. The log of another start is kept: names do not repeat."""
    command = host.command(sys.executable, "-W", "ignore", "-m", "rlhf", *words)
    with open(f"{output}.out", "w") as out, open(f"{output}.err", "w") as err:
        return subprocess.Popen(command, cwd=ROOT, env=variables, stdout=out, stderr=err, text=True)


def received_bytes(host: Namespace) -> int:
    """What came over the cable so far."""
    path = f"/sys/class/net/{host.interface}/statistics/rx_bytes"
    shown = subprocess.run(host.command("cat", path), check=True, capture_output=True, text=True, timeout=20)
    return int(shown.stdout)
