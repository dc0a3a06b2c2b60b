"""Which worker runs where: a pure function from roles and nodes to placements. Nothing here knows Ray."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf.errors import PlacementError

ROUNDING = 1e-9
"""Shares such as 0.1 + 0.2 are compared with this much tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one node has: its name (host or address), cores and GPUs."""

    node: str
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A kind of worker: how many, what each takes, and the class each holds.

    `factory` is `module:Class`, imported inside the worker after `env` is set. `cpus` and `gpus` are for one worker.
    `concurrency` bounds the synchronous calls that run at once. `hint` names the settings that decide `count`, `cpus`
    and `gpus`, for the message of a plan that does not fit.
    """

    name: str
    count: int
    factory: str
    cpus: float = 1.0
    gpus: float = 0.0
    env: Mapping[str, str] = field(default_factory=dict)
    concurrency: int = 4
    start_timeout_seconds: float = 300.0
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One worker's place. `threads` is the floor of its cores, at least 1."""

    worker: str
    role: str
    index: int
    node: str
    cpus: float
    gpus: float
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every worker's place, roles in the order given and indices in order."""

    placements: tuple[Placement, ...]

    def of(self, role: str) -> tuple[Placement, ...]:
        """The placements of one role, by index."""
        return tuple(placement for placement in self.placements if placement.role == role)


def plan(roles: Sequence[Role], nodes: Sequence[Resources]) -> Plan:
    """Give every worker the first node that still has room, in order. Raises `PlacementError`."""
    _check_totals(roles, nodes)
    free = {node.node: [node.cpus, node.gpus] for node in nodes}
    placements = []
    for role in roles:
        for index in range(role.count):
            node = _first_fit(role, free)
            if node is None:
                raise PlacementError(_no_node(role, index, nodes))
            free[node][0] -= role.cpus
            free[node][1] -= role.gpus
            placements.append(_placement(role, index, node))
    return Plan(placements=tuple(placements))


def describe(plan: Plan) -> str:
    """The plan as a small table, one line a worker."""
    header = ("worker", "node", "cores", "threads", "GPUs")
    rows = [_cells(placement) for placement in plan.placements]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return "\n".join(_line(row, widths) for row in (header, *rows))


def this_machine(name: str = "this machine") -> Resources:
    """The cores this process may use and the GPUs it may see, found without importing torch."""
    return Resources(node=name, cpus=float(len(os.sched_getaffinity(0))), gpus=float(_visible_gpus()))


def worker_name(role: str, index: int) -> str:
    return f"{role}-{index}"


def _placement(role: Role, index: int, node: str) -> Placement:
    return Placement(
        worker=worker_name(role.name, index), role=role.name, index=index, node=node,
        cpus=role.cpus, gpus=role.gpus, threads=max(1, math.floor(role.cpus + ROUNDING)),
    )  # fmt: skip


def _check_totals(roles: Sequence[Role], nodes: Sequence[Resources]) -> None:
    cores, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    for unit, asked, there in (
        ("core", sum(role.count * role.cpus for role in roles), cores),
        ("GPU", sum(role.count * role.gpus for role in roles), gpus),
    ):
        if asked > there + ROUNDING:
            asking = [role for role in roles if (role.cpus if unit == "core" else role.gpus) > 0]
            shortage = f"{_count(asked, unit)} asked, {_where(nodes)} {there:g}"
            raise PlacementError(f"{_shares(asking, unit)}: {shortage}{_lower(asking)}")


def _shares(roles: Sequence[Role], unit: str) -> str:
    amounts = [(role, role.cpus if unit == "core" else role.gpus) for role in roles]
    return " and ".join(f"{role.count} {role.name} x {_count(amount, unit)}" for role, amount in amounts)


def _no_node(role: Role, index: int, nodes: Sequence[Resources]) -> str:
    asked = _count(role.cpus, "core") + (f" and {_count(role.gpus, 'GPU')}" if role.gpus else "")
    left = f"{_where(nodes)} no node with so much left{_lower([role])}"
    return f"{worker_name(role.name, index)} needs {asked} on one node, and {left}"


def _where(nodes: Sequence[Resources]) -> str:
    return "this machine has" if len(nodes) == 1 else f"the {len(nodes)} nodes have"


def _lower(roles: Sequence[Role]) -> str:
    hints = list(dict.fromkeys(role.hint for role in roles if role.hint))
    return f"; lower {' or '.join(hints)}" if hints else ""


def _count(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}{'' if amount == 1 else 's'}"


def _first_fit(role: Role, free: Mapping[str, Sequence[float]]) -> str | None:
    for name, (cpus, gpus) in free.items():
        if role.cpus <= cpus + ROUNDING and role.gpus <= gpus + ROUNDING:
            return name
    return None


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join(words + numbers)


def _cells(placed: Placement) -> tuple[str, ...]:
    gpus = f"{placed.gpus:g}" if placed.gpus else "-"
    return placed.worker, placed.node, f"{placed.cpus:g}", str(placed.threads), gpus


def _visible_gpus() -> int:
    """NVIDIA's driver lists one folder a GPU; CUDA_VISIBLE_DEVICES may hide some (`-1` hides what follows)."""
    driver = Path("/proc/driver/nvidia/gpus")
    present = len(list(driver.iterdir())) if driver.is_dir() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    named = [name.strip() for name in visible.split(",")]
    hidden_from = next((at for at, name in enumerate(named) if name in ("", "-1")), len(named))
    return min(present, hidden_from)
