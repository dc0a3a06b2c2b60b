"""Reserve resources for all workers by Ray's placement groups, and read from them where each worker runs.

There is one bundle for each worker. Workers that share GPUs have one bundle together, so that they are on one node.
Workers follow the order of the nodes, so that consecutive ranks share a node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from rlhf.cluster.ray_connection import ray_module
from rlhf.cluster.roles import Resources, Role, gpu_cell, table, worker_name
from rlhf.errors import PlacementError

HEAD_RESOURCE = "node:__internal_head__"
NODE_LABEL = "ray.io/node-id"
"""Ray labels every node with its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One worker's node and bundle. `beside` are the workers whose GPUs it uses; if empty, it has its own."""

    role: Role
    index: int
    node: str
    group: Any
    bundle: int
    beside: tuple[str, ...] = ()

    @property
    def worker(self) -> str:
        """Return the worker's name."""
        return worker_name(self.role.name, self.index)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Workers that are placed together: `each` of `role`, and one of `guest`, which uses their GPUs."""

    role: Role
    each: int = 1
    guest: Role | None = None

    @property
    def count(self) -> int:
        """Return the number of such bundles."""
        return self.role.count // self.each

    def resources(self) -> dict[str, float]:
        """Return what one bundle reserves, by Ray's names."""
        cpus = self.each * self.role.cpus + (self.guest.cpus if self.guest else 0.0)
        wanted = {"CPU": cpus, "GPU": self.each * self.role.gpus}
        return {resource: amount for resource, amount in wanted.items() if amount}

    def placements(self, place: int, node: str, group: Any, number: int) -> list[Placement]:
        """List the workers in the bundle `number` of a group, which is the `place`-th of its role."""
        placed = partial(Placement, node=node, group=group, bundle=number)
        hosts = [placed(role=self.role, index=place * self.each + offset) for offset in range(self.each)]
        guests = [self.guest] if self.guest else []
        beside = tuple(host.worker for host in hosts)
        return [*hosts, *(placed(role=guest, index=place, beside=beside) for guest in guests)]


class Reservation:
    """The placement groups of a run: one for roles that are packed, one for each that is spread."""

    def __init__(self, roles: Sequence[Role], nodes: Mapping[str, Resources]) -> None:
        """Ask Ray for all resources. Workers without GPUs get nodes without GPUs if these have enough cores for all of
        them. Raises `PlacementError` where workers cannot share GPUs evenly."""
        self._roles = roles
        bundles = bundles_of(roles)
        without = [bundle for bundle in bundles if "GPU" not in bundle.resources()]
        spare = [id for id, node in nodes.items() if not node.gpus]
        needed = sum(bundle.count * bundle.resources().get("CPU", 0.0) for bundle in without)
        apart = without if needed <= sum(nodes[id].cpus for id in spare) else []
        rest = [bundle for bundle in bundles if bundle not in apart]
        self._groups = [*_groups(apart, {NODE_LABEL: f"in({','.join(spare)})"}), *_groups(rest, {})]

    def is_ready(self, seconds: float) -> bool:
        """Wait until Ray has reserved everything, at most for this long for each group."""
        return all(group.wait(seconds) for group, _ in self._groups)

    def placements(self, nodes: Mapping[str, str]) -> list[Placement]:
        """Read from Ray where each worker is, in the order of roles and indices. `nodes` maps the ids of nodes to their
        names, in the order of the nodes."""
        order = list(nodes)
        found: list[Placement] = []
        for group, bundles in self._groups:
            node_of = ray_module().util.placement_group_table(group)["bundles_to_node_id"]
            first = 0
            for bundle in bundles:
                numbers = range(first, first + bundle.count)
                first += bundle.count
                for place, number in enumerate(sorted(numbers, key=lambda number: order.index(node_of[number]))):
                    found += bundle.placements(place, nodes[node_of[number]], group, number)
        position = {role.name: place for place, role in enumerate(self._roles)}
        return sorted(found, key=lambda placed: (position[placed.role.name], placed.index))

    def remove(self) -> None:
        """Give the resources back."""
        for group, _ in self._groups:
            ray_module().util.remove_placement_group(group)


def bundles_of(roles: Sequence[Role]) -> list[Bundle]:
    """Return the bundles of all roles. Raises `PlacementError` where the workers cannot share GPUs evenly."""
    guests = {role.shares_with: role for role in roles if role.shares_with}
    return [_bundle(role, guests.get(role.name)) for role in roles if not role.shares_with]


def _bundle(host: Role, guest: Role | None) -> Bundle:
    if guest is None:
        return Bundle(host)
    each = host.count // max(guest.count, 1)
    if each * guest.count != host.count or each * host.gpus != guest.gpus:
        raise PlacementError(
            f"{guest.count} {guest.name} of {guest.gpus:g} GPUs cannot share those of {host.count} {host.name} of "
            f"{host.gpus:g}; change {guest.hint}, or {host.hint}"
        )
    return Bundle(host, each, guest)


def _groups(bundles: Sequence[Bundle], selector: Mapping[str, str]) -> Iterator[tuple[Any, Sequence[Bundle]]]:
    """Ask Ray for bundles on the nodes that the label `selector` allows; yield each group with its bundles."""
    packed = [bundle for bundle in bundles if bundle.role.layout == "pack"]
    spread = [[bundle] for bundle in bundles if bundle.role.layout == "spread"]
    for strategy, chosen in [*(("SPREAD", alone) for alone in spread), ("PACK", packed)]:
        resources = [bundle.resources() for bundle in chosen for _ in range(bundle.count)]
        if resources:
            group = ray_module().util.placement_group(
                resources, strategy=strategy, bundle_label_selector=[dict(selector)] * len(resources)
            )
            yield group, chosen


def placement_table(placements: Sequence[Placement]) -> str:
    """Format placements as a table: a line for the workers of one role on one node."""
    rows = []
    for (role, node), grouped in groupby(placements, key=lambda placed: (placed.role, placed.node)):
        first, *others = grouped
        workers = f"{first.worker}…{others[-1].index}" if others else first.worker
        gpus = gpu_cell(role.gpus, role.shares_with)
        rows.append((workers, node, f"{role.cpus:g}", str(role.threads), gpus))
    return table([("worker", "node", "cores", "threads", "GPUs"), *rows], text_columns=2)


def nodes_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Resources]:
    """Return the living ones of `ray.nodes()` by Ray's id: the head first, then by name.

    A node's name is the one that `ray start --node-name` gave it, by default its host's. Nodes with the same name get a
    number: two of them may share a machine.
    """
    alive = sorted((node for node in nodes if node["Alive"]), key=_order)
    counts, seen = Counter(map(_name, alive)), Counter[str]()
    found = {}
    for node in alive:
        name = _name(node)
        seen[name] += 1
        unique = f"{name}#{seen[name]}" if counts[name] > 1 else name
        resources = node["Resources"]
        found[node["NodeID"]] = Resources(node=unique, cpus=resources.get("CPU", 0.0), gpus=resources.get("GPU", 0.0))
    return found


def _name(node: Mapping[str, Any]) -> str:
    """Ray names a node without a name by its address; the host name is more readable."""
    given, address = node.get("NodeName"), node["NodeManagerAddress"]
    return str(given if given and given != address else node["NodeManagerHostname"] or address)


def _order(node: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the head first; then groups of digits in names compare as numbers, so that `n10` is after `n9`."""
    parts = re.findall(r"\d+|\D+", _name(node))
    natural = [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
    return HEAD_RESOURCE not in node["Resources"], natural, node["NodeID"]
