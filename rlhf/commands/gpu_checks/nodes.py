"""Checks between the nodes of a Ray cluster that runs already (`RAY_ADDRESS`, or the one that this node is part of)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.commands.gpu_checks.finding import Finding
from rlhf.commands.gpu_checks.machine import GpuMachine

MOST_SKEW_SECONDS = 1.0
"""Beyond this, times in spans and logs of different nodes cannot be compared."""
ANSWER_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What one node said: its name, its time (seconds since 1970) and what it read in the shared file."""

    node: str
    seconds: float
    read: str


def clocks_and_folder(machine: GpuMachine) -> Finding:
    """Every node answers, its clock is this node's, and it reads what this node has just written."""
    secret, file = secrets.token_hex(8), machine.folder / "shared.txt"
    file.write_text(secret)
    asked = time.time()
    return judged(ask_nodes(file), secret, machine.nodes, (asked, time.time()))


def judged(answers: Sequence[NodeAnswer], secret: str, nodes: int, between: tuple[float, float]) -> Finding:
    """Hold the answers against what was written, and their times against those of question and answer."""
    skew = {one.node: max(between[0] - one.seconds, one.seconds - between[1], 0.0) for one in answers}
    blind = [one.node for one in answers if one.read != secret]
    worst = max(skew.values(), default=0.0)
    return Finding(
        good=len(answers) == nodes and not blind and worst <= MOST_SKEW_SECONDS,
        expected=f"{nodes} nodes, clocks within {MOST_SKEW_SECONDS:g} s, the same folder",
        found=f"{len(answers)} nodes, clocks {worst:.2f} s apart, {blind or 'none'} without the folder",
        figures={"clock_skew_s": worst},
    )


def ask_nodes(file: Path) -> list[NodeAnswer]:
    """One task on every living node of the cluster."""
    from rlhf.cluster.quiet_ray import quiet_ray

    ray = quiet_ray()
    ray.init(address="auto", log_to_driver=False)
    affinity: Any = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    ids = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0)(answer)
    asked = [task.options(scheduling_strategy=affinity(one, soft=False)).remote(str(file)) for one in ids]
    answers: list[NodeAnswer] = ray.get(asked, timeout=ANSWER_SECONDS)
    return answers


def answer(file: str) -> NodeAnswer:
    """What this node says."""
    import socket

    path = Path(file)
    return NodeAnswer(node=socket.gethostname(), seconds=time.time(), read=path.read_text() if path.exists() else "")
