"""Reserve resources for all workers by Ray's placement groups, and read from them where each worker runs.

There is one bundle for each worker. Workers that share GPUs have one bundle together, so that they are on one node.
Workers follow the order of the nodes, so that consecutive ranks share a node.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """One worker's node and bundle. `beside` are the workers whose GPUs it uses; without any, its GPUs are its own."""

    worker: str
    role: Role
    index: int
    node: str
    group: Any
    bundle: int
    beside: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bundle:
    """Workers that are placed together: `each` of `role`, and one of `guest`, which uses their GPUs."""

    role: Role
    each: int = 1
    guest: Role | None = None

    @property
    def count(self) -> int:
        """The number of such bundles."""
        return self.role.count // self.each

    def resources(self) -> dict[str, float]:
        """What one bundle reserves, in Ray's words."""
        cpus = self.each * self.role.cpus + (self.guest.cpus if self.guest else 0.0)
        wanted = {"CPU": cpus, "GPU": self.each * self.role.gpus}
        return {resource: amount for resource, amount in wanted.items() if amount}


class Reservation:
    """The placement groups of a run: one for roles that are packed, one for each that is spread."""

    def __init__(self, roles: Sequence[Role], nodes: Mapping[str, Resources]) -> None:
        """Ask Ray for all resources. Workers without GPUs get nodes without GPUs if these have enough cores for all of
        them. Raises `PlacementError` where workers cannot share GPUs evenly."""
        self._roles = roles
        bundles = bundles_of(roles)
        without = [bundle for bundle in bundles if "GPU" not in bundle.resources()]
        spare = [id for id, has in nodes.items() if not has.gpus]
        cores = sum(nodes[id].cpus for id in spare)
        apart = without if sum(bundle.count * bundle.resources().get("CPU", 0.0) for bundle in without) <= cores else []
        rest = [bundle for bundle in bundles if bundle not in apart]
        self._groups = [*_groups(apart, {NODE_LABEL: f"in({','.join(spare)})"}), *_groups(rest, {})]

    def is_ready(self, seconds: float) -> bool:
        """Wait until Ray has reserved everything, at most for this long for each group."""
        return all(group.wait(seconds) for group, _ in self._groups)

    def placements(self, nodes: Mapping[str, str]) -> list[Placement]:
        """Read from Ray where each worker is, in the order of roles and indices. `nodes` maps the ids of nodes to their
        names, in the order of the nodes."""
        order = {node: place for place, node in enumerate(nodes)}
        found: list[Placement] = []
        for group, bundles in self._groups:
            node_of = ray_module().util.placement_group_table(group)["bundles_to_node_id"]
            first = 0
            for bundle in bundles:
                numbers = sorted(range(first, first + bundle.count), key=lambda number: order[node_of[number]])
                first += bundle.count
                for place, number in enumerate(numbers):
                    found += _in_bundle(bundle, place, nodes[node_of[number]], group, number)
        position = {role.name: place for place, role in enumerate(self._roles)}
        return sorted(found, key=lambda placed: (position[placed.role.name], placed.index))

    def remove(self) -> None:
        """Give the resources back."""
        for group, _ in self._groups:
            ray_module().util.remove_placement_group(group)


def bundles_of(roles: Sequence[Role]) -> list[Bundle]:
    """The bundles of all roles. Raises `PlacementError` where the workers cannot share GPUs evenly."""
    guests = {role.shares_with: role for role in roles if role.shares_with}
    return [_shared(role, guests.get(role.name)) for role in roles if not role.shares_with]


def _shared(host: Role, guest: Role | None) -> Bundle:
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
    """Ask Ray for bundles on the nodes that the label `selector` allows; each group with what is in it."""
    packed = [bundle for bundle in bundles if bundle.role.layout == "pack"]
    spread = [[bundle] for bundle in bundles if bundle.role.layout == "spread"]
    for strategy, chosen in [*(("SPREAD", alone) for alone in spread), ("PACK", packed)]:
        resources = [bundle.resources() for bundle in chosen for _ in range(bundle.count)]
        if resources:
            group = ray_module().util.placement_group(
                resources, strategy=strategy, bundle_label_selector=[dict(selector)] * len(resources)
            )
            yield group, chosen


def _in_bundle(bundle: Bundle, place: int, node: str, group: Any, number: int) -> list[Placement]:
    """The workers in one bundle, which is the `place`-th of its role."""

    def placed(role: Role, index: int, beside: tuple[str, ...] = ()) -> Placement:
        name = worker_name(role.name, index)
        return Placement(
            worker=name, role=role, index=index, node=node, group=group, bundle=number, beside=beside
        )  # fmt: skip

    hosts = [placed(bundle.role, place * bundle.each + offset) for offset in range(bundle.each)]
    if bundle.guest is None:
        return hosts
    return [*hosts, placed(bundle.guest, place, tuple(host.worker for host in hosts))]


def placement_table(placements: Sequence[Placement]) -> str:
    """Format placements as a table: a line for the workers of one role on one node."""
    rows = []
    for (role, node), grouped in groupby(placements, key=lambda placed: (placed.role, placed.node)):
        first, *others = grouped
        workers = f"{first.worker}…{others[-1].index}" if others else first.worker
        gpus = gpu_cell(role.gpus, role.shares_with)
        rows.append((workers, node, f"{role.cpus:g}", str(role.threads), gpus))
    return table([("worker", "node", "cores", "threads", "GPUs"), *rows], text_columns=2)


def living_nodes() -> dict[str, Resources]:
    """The living nodes of the cluster that this process has joined, by Ray's id: the head first, then by name.

    A node's name is the one that `ray start --node-name` gave it, by default its host's. Nodes with the same name get a
    number: two of them may share a machine.
    """
    return nodes_of(ray_module().nodes())


def nodes_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Resources]:
    """The living ones of Ray's nodes, in an order that does not depend on Ray's."""
    alive = sorted((node for node in nodes if node["Alive"]), key=_order)
    shared = Counter(map(_name, alive))
    seen: dict[str, int] = defaultdict(int)
    found = {}
    for node in alive:
        name = _name(node)
        seen[name] += 1
        unique = f"{name}#{seen[name]}" if shared[name] > 1 else name
        has = node["Resources"]
        found[node["NodeID"]] = Resources(node=unique, cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0))
    return found


def _name(node: Mapping[str, Any]) -> str:
    """Ray names a node without a name by its address; the host name is more readable."""
    given, address = node.get("NodeName"), node["NodeManagerAddress"]
    return str(given if given and given != address else node["NodeManagerHostname"] or address)


def _order(node: Mapping[str, Any]) -> tuple[Any, ...]:
    """The head first; then groups of digits in names compare as numbers, so that `n10` is after `n9`."""
    parts = re.findall(r"\d+|\D+", _name(node))
    natural = [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
    return HEAD_RESOURCE not in node["Resources"], natural, node["NodeID"]
