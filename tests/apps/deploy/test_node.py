"""`rlhf node` with real Ray: two nodes of one cluster in processes of their own, and how they part."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.end_to_end.running import environment
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
UP_SECONDS, END_SECONDS = scaled(150), scaled(60)


@dataclass
class Nodes:
    """Nodes of one run, each with a name as SLURM gives one."""

    folder: Path
    secret: str = field(default_factory=lambda: secrets.token_hex(16))
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def rendezvous(self) -> Path:
        return self.folder / "rendezvous.json"

    def start(self, name: str, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rlhf", "node", "--rendezvous", str(self.rendezvous), "--cpus", "1"]
        told = {"SLURMD_NODENAME": name, "RLHF_RUN_ID": "run-1", "RAY_AUTH_TOKEN": self.secret, **variables}
        self.processes[name] = subprocess.Popen(
            [*command, "--gpus", "0", "--log-dir", str(self.folder), *words], env=environment() | told, cwd=self.folder
        )
        return self.processes[name]

    def said(self, name: str) -> str:
        log = self.folder / f"node-{name}.log"
        return log.read_text() if log.exists() else ""

    def until_said(self, name: str, words: str) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while not re.search(words, self.said(name)):
            assert self.processes[name].poll() is None, self.said(name)
            assert time.monotonic() < deadline, self.said(name)
            time.sleep(0.2)

    def left(self) -> list[psutil.Process]:
        """Processes that have this run's secret."""
        return [one for one in psutil.process_iter() if self._is_ours(one)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("RAY_AUTH_TOKEN") == self.secret
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    for process in nodes.left():
        process.kill()


@pytest.fixture
def pair(nodes: Nodes) -> Nodes:
    """A head and a worker that has joined it."""
    nodes.start("n1", "--head")
    nodes.until_said("n1", "is the head of run run-1")
    nodes.start("n2")
    nodes.until_said("n2", "joined n1, the head of run run-1")
    return nodes


def test_a_cluster_is_as_its_file_says_refuses_strangers_and_ends_with_its_head(pair: Nodes) -> None:
    told = json.loads(pair.rendezvous.read_text())
    assert set(told) == {"run", "address", "interface", "host"}
    assert (told["run"], told["host"]) == ("run-1", "n1")
    assert f"at {told['address']}, interface {told['interface']} (" in pair.said("n2")
    assert not re.search(r":(6379|8265|10001|52365)\b", " ".join(listening(pair.left())))
    for process in pair.left():
        if process.name() in ("raylet", "gcs_server"):
            process.terminate()  # as SLURM does to every process when it preempts a job; a run then has time to save
    assert pair.start("n3", RLHF_RUN_ID="run-2").wait(END_SECONDS) == 2
    assert "belongs to run 'run-1', and this is run 'run-2'" in pair.said("n3")
    assert pair.start("n4", RAY_AUTH_TOKEN="f" * 32).wait(END_SECONDS) == 2
    assert "refuses this process's token" in pair.said("n4")
    pair.processes["n1"].send_signal(signal.SIGTERM)
    assert [pair.processes[name].wait(END_SECONDS) for name in ("n1", "n2")] == [0, 0]
    assert not pair.rendezvous.exists()
    assert not pair.left()


@pytest.mark.slow
def test_a_worker_whose_head_dies_says_so_in_one_line(pair: Nodes) -> None:
    for process in pair.left():
        if process.pid != pair.processes["n2"].pid and of_node(process, "n1"):
            process.kill()
    assert pair.processes["n2"].wait(END_SECONDS) == 1
    [line] = [line for line in pair.said("n2").splitlines() if " error: " in line]
    assert re.search(r"^\S+Z n2 error: the head on n1 \(\S+\) died: ", line)
    assert not pair.left()


def listening(processes: list[psutil.Process]) -> list[str]:
    """`address:port` of every listening socket."""
    found = []
    for process in processes:
        for one in process.net_connections(kind="tcp"):
            if one.status == psutil.CONN_LISTEN:
                found.append(f"{one.laddr.ip}:{one.laddr.port}")
    assert found, "a cluster listens somewhere"
    return found


def of_node(process: psutil.Process, name: str) -> bool:
    try:
        return process.environ().get("SLURMD_NODENAME") == name
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it ends just now
        return False
