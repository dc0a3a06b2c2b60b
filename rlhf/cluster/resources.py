"""Data types of a placement plan: what nodes have, what workers need, and where each worker goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlhf.cluster.layout import Layout

ROUNDING = 1e-9
"""Tolerance for comparing sums of shares such as 0.1 + 0.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources of one node: cores and GPUs, and a name that is unique in the cluster."""

    node: str
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A kind of worker: its count, the resources of each worker, and the class that each holds.

    `factory` is `module:Class`, imported inside the worker after `env` is set and the folders of `python_path` are on
    Python's path. `imports` is a `module:function` that makes the slow imports of the class: a worker with a process of
    its own runs it at its start, and so does the fork server. `cpus` and `gpus` are for one worker, which runs on a
    single node. `layout` says how the workers of the role are distributed over the nodes. `concurrency` bounds the
    synchronous calls that run at once. `hint` names the settings that decide `count`, `cpus` and `gpus`, and
    `size_hint` those that decide only `cpus` and `gpus`; the error message of a plan that does not fit uses both.

    `shares_with` is a role whose GPUs this one uses instead of some of its own: of N workers of that role and M of this
    one, the worker i uses the GPUs of those from i N/M to (i + 1) N/M - 1, on their node.
    """

    name: str
    count: int
    factory: str
    cpus: float = 1.0
    gpus: float = 0.0
    layout: Layout = "fill"
    env: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    imports: str = ""
    concurrency: int = 4
    start_timeout_seconds: float = 300.0
    hint: str = ""
    size_hint: str = ""
    shares_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The node and resources of one worker. `threads` is the number of its cores rounded down, at least 1. `beside` are
    the workers whose GPUs it uses; without any, its GPUs are its own."""

    worker: str
    role: str
    index: int
    node: str
    cpus: float
    gpus: float
    threads: int
    beside: tuple[str, ...] = ()

    @property
    def own_gpus(self) -> float:
        """The GPUs that are reserved for this worker."""
        return 0.0 if self.beside else self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All workers' placements, roles in the given order and indices in order; `nodes` lists every node in order."""

    placements: tuple[Placement, ...]
    nodes: tuple[str, ...] = ()

    def of(self, role: str) -> tuple[Placement, ...]:
        """The placements of one role, by index."""
        return tuple(placement for placement in self.placements if placement.role == role)


def worker_name(role: str, index: int) -> str:
    """The name of a worker: its role and index."""
    return f"{role}-{index}"
