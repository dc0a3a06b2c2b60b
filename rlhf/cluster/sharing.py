"""Roles that share GPUs are placed as one: a unit is a worker with the workers whose GPUs it uses, all on one node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rlhf.cluster.resources import Role, worker_name
from rlhf.errors import PlacementError


def units_of(roles: Sequence[Role]) -> list[Role]:
    """The roles as they are placed: those that share GPUs are one role of units, the others are themselves.

    Raises `PlacementError` where the workers cannot be dealt out evenly.
    """
    guests = {role.shares_with: role for role in roles if role.shares_with}
    hosts = [role for role in roles if not role.shares_with]
    return [_unit(role, guests[role.name]) if role.name in guests else role for role in hosts]


def taken_by_roles(
    roles: Sequence[Role], units: Sequence[Role], taken: Mapping[str, Sequence[int]]
) -> dict[str, list[int]]:
    """Number of workers of every role that each node takes, from that of the units, `taken`."""
    hosts = {role.name: role for role in roles}
    counts = {unit.name.partition("+")[0]: (unit.count, taken[unit.name]) for unit in units}
    found = {}
    for role in roles:
        count, on_nodes = counts[hosts[role.shares_with].name if role.shares_with else role.name]
        found[role.name] = [here * role.count // max(count, 1) for here in on_nodes]
    return found


def neighbours(role: Role, roles: Iterable[Role], index: int) -> tuple[str, ...]:
    """The workers whose GPUs the worker `index` of this role uses."""
    host = next((other for other in roles if other.name == role.shares_with), None)
    if host is None:
        return ()
    each = host.count // role.count
    return tuple(worker_name(host.name, at) for at in range(index * each, (index + 1) * each))


def _unit(host: Role, guest: Role) -> Role:
    each = host.count // max(guest.count, 1)
    if each * guest.count != host.count or each * host.gpus != guest.gpus:
        raise PlacementError(
            f"{guest.count} {guest.name} of {guest.gpus:g} GPUs cannot share those of {host.count} {host.name} of "
            f"{host.gpus:g}; change {guest.hint}, or {host.hint}"
        )
    return replace(
        host,
        name=f"{host.name}+{guest.name}",
        count=guest.count,
        cpus=each * host.cpus + guest.cpus,
        gpus=each * host.gpus,
        hint=f"{host.hint} or {guest.hint}",
        size_hint=f"{host.size_hint} or {guest.size_hint}",
    )
