"""Training over two hosts with addresses of their own; and what happens when the cable between them is cut."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from rlhf.apps.deploy.heartbeat import LOST_SECONDS
from rlhf.runs.restarts import read_restarts
from rlhf.trainer.checkpoint import checkpoints, read_checkpoint
from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, environment
from tests.end_to_end.test_clean_ends import MARK, marked, until

IP_SECONDS = 20
FREE_SUBNETS = range(64, 255)


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A host: the name of its namespace, its address, and its end of the cable."""

    name: str
    address: str
    interface: str

    def command(self, *words: object) -> list[str]:
        """`words` as they run on this host."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def plug(self, state: str) -> None:
        """Take this end of the cable `up` or `down`. The address stays; the route to the peer goes and comes back."""
        ip("-n", self.name, "link", "set", self.interface, state)

    def processes(self) -> list[psutil.Process]:
        """What runs on this host."""
        named = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, timeout=IP_SECONDS)
        found = []
        for pid in named.stdout.split():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=IP_SECONDS)


@contextmanager
def two_hosts(mark: str) -> Iterator[tuple[Namespace, Namespace]]:
    """Two hosts on a subnet of their own. At the end whatever still runs on them is killed, and they are removed.

    `mark` begins the names of namespaces and interfaces, up to ten letters.
    """
    subnet = next(number for number in FREE_SUBNETS if f"10.231.{number}." not in _addresses())
    first, second = (
        Namespace(name=f"{mark}-{os.getpid()}-{letter}", address=f"10.231.{subnet}.{host}", interface=f"{mark}{letter}")
        for host, letter in enumerate("ab", start=1)
    )
    try:
        for namespace in (first, second):
            ip("netns", "add", namespace.name)
        ip("-n", first.name, "link", "add", first.interface, "type", "veth",
           "peer", "name", second.interface, "netns", second.name)  # fmt: skip
        for namespace in (first, second):
            ip("-n", namespace.name, "addr", "add", f"{namespace.address}/24", "dev", namespace.interface)
            ip("-n", namespace.name, "link", "set", "lo", "up")
            namespace.plug("up")
        yield first, second
    finally:
        for namespace in (first, second):
            for process in namespace.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            subprocess.run(["ip", "netns", "del", namespace.name], capture_output=True, timeout=IP_SECONDS)


def _addresses() -> str:
    """Every address of this machine itself, so that the subnet is none of its own."""
    return " ".join(entry.address for entries in psutil.net_if_addrs().values() for entry in entries)


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


pytestmark = [pytest.mark.slurm, pytest.mark.engine, pytest.mark.timeout(900)]

RUN_SECONDS, START_SECONDS = 300, 240
CLOSING_SECONDS = 30
"""For the run to close its books once a node is given up, on a busy machine."""
SMALL_ENOUGH = (
    "trainer.deepspeed.cpus_per_rank=0.25", "rollout.engines=2", "rollout.cpus_per_engine=0.5",
    "cluster.placement_timeout_seconds=30",
)  # fmt: skip
"""Both ranks and one of the engines fit on the host of one core."""
GIVE_UP_SECONDS = 60
"""For a node that misses its head to be gone, with all that ran on it."""


@pytest.fixture
def hosts() -> Iterator[tuple[Namespace, Namespace]]:
    with two_hosts("rlhf") as pair:
        yield pair


def summary(cluster: Cluster, run: str) -> dict[str, object]:
    return json.loads((cluster.folder / run / "summary.json").read_text())


def updates_told(cluster: Cluster, name: str) -> int:
    found = re.findall(r"^update +(\d+)/", cluster.said(f"{name}.out"), re.MULTILINE)
    return int(found[-1]) if found else 0


def test_a_run_over_two_hosts_reaches_its_end(hosts: tuple[Namespace, Namespace], tmp_path: Path) -> None:
    with cluster(hosts, tmp_path) as two:
        training = two.train("whole", "trainer.updates=4")
        assert training.wait(RUN_SECONDS) == 0, two.said("whole.err")
        assert summary(two, "whole")["updates"] == 4
        placed = dict(re.findall(r"^((?:learner|engine)-\d) +(\S+)", two.said("whole.out"), re.MULTILINE))
        assert placed["learner-0"] != placed["learner-1"] == placed["engine-0"]
        weights = (tmp_path / "whole/checkpoints/version-000004/huggingface/model.safetensors").stat().st_size
        assert received_bytes(hosts[1]) > 5 * weights, "five publishes came over the cable"
        assert two.end() == [0, 0], two.said(f"{hosts[1].name}.out")
        assert until(lambda: not marked(tmp_path), 10)
        assert [host.processes() for host in hosts] == [[], []]


def test_a_cut_cable_ends_the_run_in_one_line_and_it_resumes_when_the_cable_is_back(
    hosts: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    with cluster(hosts, tmp_path) as two:
        training = two.train("run", "trainer.updates=100000", "trainer.save_every=2")
        assert until(lambda: updates_told(two, "run") >= 5 or training.poll() is not None, START_SECONDS)
        assert training.poll() is None, two.said("run.err")
        hosts[1].plug("down")
        cut = time.monotonic()
        assert training.wait(LOST_SECONDS + CLOSING_SECONDS) == 1
        assert until(lambda: not hosts[1].processes(), GIVE_UP_SECONDS), hosts[1].processes()
        print(f"the run ended {time.monotonic() - cut:.0f} s after the cut")
        told = [line for line in two.said("run.err").splitlines() if line.startswith("error: ")]
        assert len(told) == 1
        assert re.fullmatch(r"error: (learner-1|engine-0) died: its node \S+ is lost", told[0]), told
        assert two.nodes[1].wait(1) == 1
        assert re.search(r"the head on .* died: no answer for \d+ s", two.said(f"{hosts[1].name}.out"))
    assert marked(tmp_path) == []
    newest = read_checkpoint(checkpoints(tmp_path / "run/checkpoints")[-1]).version
    assert newest >= 4

    hosts[1].plug("up")
    with cluster(hosts, tmp_path) as two:
        resumed = two.train("run", f"trainer.updates={newest + 2}", "--resume")
        assert resumed.wait(RUN_SECONDS) == 0, two.said("run.err")
        assert f"resuming from version-{newest:06d}" in two.said("run.out")
        assert summary(two, "run")["updates"] == newest + 2
        two.end()
    assert marked(tmp_path) == []


def test_a_run_whose_cable_is_cut_goes_on_by_itself_on_the_host_that_is_left(
    hosts: tuple[Namespace, Namespace], tmp_path: Path
) -> None:
    with cluster(hosts, tmp_path) as two:
        training = two.train("run", "trainer.updates=30", "trainer.save_every=2", *SMALL_ENOUGH, "run.max_restarts=3")
        assert until(lambda: updates_told(two, "run") >= 5 or training.poll() is not None, START_SECONDS)
        assert training.poll() is None, two.said("run.err")
        hosts[1].plug("down")
        cut = time.monotonic()
        assert until(lambda: read_restarts(tmp_path / "run/restarts.jsonl") or training.poll() is not None, 120)
        print(f"the run was started again {time.monotonic() - cut:.0f} s after the cut")
        assert training.wait(RUN_SECONDS) == 0, two.said("run.err")
        assert "1 of 2 nodes: 1 of 2 engine" in two.said("run.out")
    (restart,) = read_restarts(tmp_path / "run/restarts.jsonl")
    assert re.fullmatch(r"(learner-1|engine-\d) died: its node \S+ is lost", restart.cause)
    assert restart.reached - restart.from_update <= 2
    assert (summary(two, "run")["outcome"], summary(two, "run")["updates"]) == ("finished", 30)
    assert marked(tmp_path) == []
