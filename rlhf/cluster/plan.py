"""Decides which worker runs on which node: a pure function from roles and nodes to placements, without Ray.

A worker runs on one node only, an engine with all its tensor-parallel GPUs included. The workers of a role follow the
order of the nodes, so that workers of consecutive ranks share a node. Workers that need no GPU go to nodes without GPUs
first. Workers that share GPUs are placed together (`rlhf.cluster.sharing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rlhf.cluster.described import describe
from rlhf.cluster.free import Free, free_of
from rlhf.cluster.layout import workers_per_node
from rlhf.cluster.resources import ROUNDING, Placement, Plan, Resources, Role, worker_name
from rlhf.cluster.sharing import neighbours, taken_by_roles, units_of
from rlhf.cluster.shortage import check_gpu_shares, check_totals, check_workers_fit, no_node

__all__ = ["Placement", "Plan", "Resources", "Role", "describe", "plan", "worker_name"]


@dataclass(frozen=True, slots=True)
class Misfit:
    """The first worker for which no node has room."""

    role: Role
    index: int


def plan(roles: Sequence[Role], nodes: Sequence[Resources]) -> Plan:
    """Place every worker. Raises `PlacementError`.

    Roles are placed in the given order. If a worker then finds no place, the largest workers are placed first; that
    always fits if the sizes divide each other and only one resource is scarce. The last attempt distributes workers
    evenly.
    """
    units = units_of(roles)
    check_gpu_shares(units)
    check_totals(units, nodes)
    check_workers_fit(units, nodes)
    misfits = []
    for attempt in _attempts(units):
        dealt = _dealt(attempt, nodes)
        if not isinstance(dealt, Misfit):
            of_units = dict(zip((unit.name for unit in attempt), dealt, strict=True))
            taken = taken_by_roles(roles, units, of_units)
            placements = tuple(at for role in roles for at in _placements(role, roles, nodes, taken[role.name]))
            return Plan(placements=placements, nodes=tuple(node.node for node in nodes))
        misfits.append(dealt)
    raise no_node(misfits[0].role, misfits[0].index, nodes)


def _attempts(roles: Sequence[Role]) -> Iterator[Sequence[Role]]:
    yield roles
    largest_first = sorted(roles, key=lambda role: (-role.gpus, -role.cpus))
    yield largest_first
    yield [replace(role, layout="spread") for role in largest_first]


def _dealt(roles: Sequence[Role], nodes: Sequence[Resources]) -> list[list[int]] | Misfit:
    """For each role, the number of its workers that each node takes."""
    free = [free_of(node) for node in nodes]
    dealt = []
    for role in roles:
        taken = _taken(role, nodes, [node.room(role) for node in free])
        if sum(taken) < role.count:
            return Misfit(role, sum(taken))
        _take(role, free, taken)
        dealt.append(taken)
    return dealt


def _taken(role: Role, nodes: Sequence[Resources], rooms: Sequence[int]) -> list[int]:
    """Number of workers that each node takes. Workers without GPUs fill the nodes without GPUs first."""
    spare = [room if not role.gpus and not node.gpus else 0 for node, room in zip(nodes, rooms, strict=True)]
    scarce = [room - less for room, less in zip(rooms, spare, strict=True)]
    first = workers_per_node(role.layout, spare, role.count)
    then = workers_per_node(role.layout, scarce, role.count - sum(first))
    return [a + b for a, b in zip(first, then, strict=True)]


def _take(role: Role, free: Sequence[Free], taken: Sequence[int]) -> None:
    for node, count in zip(free, taken, strict=True):
        node.take(role, count)


def _placements(
    role: Role, roles: Sequence[Role], nodes: Sequence[Resources], taken: Sequence[int]
) -> Iterator[Placement]:
    places = (node.node for node, count in zip(nodes, taken, strict=True) for _ in range(count))
    threads = max(1, math.floor(role.cpus + ROUNDING))
    for index, node in enumerate(places):
        yield Placement(
            worker=worker_name(role.name, index), role=role.name, index=index, node=node,
            cpus=role.cpus, gpus=role.gpus, threads=threads, beside=neighbours(role, roles, index),
        )  # fmt: skip
