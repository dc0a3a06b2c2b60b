"""The workers that a run asks for, by role, and a check that the nodes have enough: arithmetic, without Ray."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from rlhf.errors import PlacementError

Unit = Literal["core", "GPU"]
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
    Python's path. `imports` is a `module:function` that makes the slow imports of the class, run by a worker's process
    at its start, or by the fork server. `cpus` and `gpus` are for one worker, on a single node. `layout` places the
    workers on as few nodes as possible (`pack`) or evenly over all (`spread`). `concurrency` bounds the synchronous
    calls that run at once. Error messages name the settings of `hint`, which decide `count`, `cpus` and `gpus`, and of
    `size_hint`, which decide only `cpus` and `gpus`.

    The end of one that is not `replaced` ends the run.

    `shares_with` is a role whose GPUs this one uses: of N workers of that role and M of this one, the worker i uses the
    GPUs of those from i N/M to (i + 1) N/M - 1, on their node. Where there is too little room, `least` workers do.
    """

    name: str
    count: int
    factory: str
    cpus: float = 1.0
    gpus: float = 0.0
    layout: Literal["pack", "spread"] = "pack"
    env: Mapping[str, str] = field(default_factory=dict)
    python_path: tuple[str, ...] = ()
    imports: str = ""
    concurrency: int = 4
    start_timeout_seconds: float = 300.0
    hint: str = ""
    size_hint: str = ""
    shares_with: str = ""
    least: int | None = None
    replaced: bool = False

    @property
    def own_gpus(self) -> float:
        """The GPUs that are reserved for one worker."""
        return 0.0 if self.shares_with else self.gpus

    @property
    def threads(self) -> int:
        """The threads of one worker: its cores rounded down, at least 1."""
        return max(1, math.floor(self.cpus + ROUNDING))


def worker_name(role: str, index: int) -> str:
    """Return the name of a worker: its role and index."""
    return f"{role}-{index}"


def check_resources(roles: Sequence[Role], nodes: Sequence[Resources]) -> None:
    """Check that the nodes together have what all workers need, and one node what the largest needs. Ray decides
    whether the workers fit together. Raises `PlacementError`, which names the demand, the supply and the settings to
    lower.
    """
    there = "this machine has" if len(nodes) == 1 else f"the {len(nodes)} nodes have"
    for role in roles:
        if role.gpus > 1 and role.gpus % 1:
            raise PlacementError(
                f"{role.name} asks for {_count(role.gpus, 'GPU')}, and a worker has whole ones or a share of one; "
                f"change {role.size_hint or role.hint}"
            )
    units: tuple[Unit, ...] = ("GPU", "core")
    for unit in units:
        asking = [role for role in roles if role.count and _amount(role, unit) > 0]
        available = [node.cpus if unit == "core" else node.gpus for node in nodes]
        total = sum(role.count * _amount(role, unit) for role in asking)
        if total > sum(available) + ROUNDING:
            raise PlacementError(
                f"{demand(asking, unit)}: {_count(total, unit)} asked, {there} {sum(available):g}"
                f"{_lower(role.hint for role in asking)}"
            )
        for role in roles:
            largest = role.cpus if unit == "core" else role.gpus
            if role.count and largest > max(available) + ROUNDING:
                raise PlacementError(
                    f"{worker_name(role.name, 0)} needs {_count(largest, unit)} on one node, and {there} "
                    f"no node with more than {max(available):g}{_lower([role.size_hint or role.hint])}"
                )


def roles_with_room(roles: Sequence[Role], nodes: Sequence[Resources]) -> tuple[Role, ...]:
    """Return the roles, reducing those that may have fewer workers to what the nodes have room for."""
    for role in roles:
        while role.least is not None and role.count > role.least and not _have_room(roles, nodes):
            fewer = replace(role, count=role.count - 1)
            roles, role = [fewer if one is role else one for one in roles], fewer
    return tuple(roles)


def _have_room(roles: Sequence[Role], nodes: Sequence[Resources]) -> bool:
    try:
        check_resources(roles, nodes)
    except PlacementError:
        return False
    return True


def used_gpus(roles: Iterable[Role]) -> float:
    """Return the number of GPUs that all workers reserve."""
    return sum(role.count * role.own_gpus for role in roles)


def demand(roles: Iterable[Role], unit: Unit) -> str:
    """Describe what roles ask for in one unit: `8 learner x 1 GPU and 2 engine x 4 GPUs`."""
    return " and ".join(f"{role.count} {role.name} x {_count(_amount(role, unit), unit)}" for role in roles)


def role_table(roles: Iterable[Role]) -> str:
    """Format the workers that a run asks for as a table, a line for each role."""
    rows = [
        (role.name, str(role.count), f"{role.cpus:g}", str(role.threads), gpu_cell(role.gpus, role.shares_with))
        for role in roles
    ]
    return table([("role", "workers", "cores", "threads", "GPUs"), *rows], text_columns=1)


def gpu_cell(gpus: float, of: str) -> str:
    """Return the GPUs of a worker, as a cell of a table; `of` is the role whose GPUs it uses."""
    return (f"{gpus:g} of {of}" if of else f"{gpus:g}") if gpus else "-"


def table(rows: Sequence[Sequence[str]], *, text_columns: int) -> str:
    """Align rows as a table: text columns to the left, the numbers after them to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < text_columns else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _amount(role: Role, unit: Unit) -> float:
    return role.cpus if unit == "core" else role.own_gpus


def _lower(hints: Iterable[str]) -> str:
    named = list(dict.fromkeys(hint for hint in hints if hint))
    return f"; lower {' or '.join(named)}" if named else ""


def _count(amount: float, unit: str) -> str:
    return f"{amount:g} {unit}{'' if amount == 1 else 's'}"
