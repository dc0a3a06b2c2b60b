"""The nodes of a Ray cluster, identified by Ray's node id, because two nodes may share a machine and its address."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf.cluster.quiet_ray import ray_module
from rlhf.cluster.resources import Resources

HEAD_RESOURCE = "node:__internal_head__"
ID_LABEL = "ray.io/node-id"
"""Ray labels every node with its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A living node. `name` is unique in its cluster: the name given by `ray start --node-name`, else the host name. It
    is the address where two hosts have the same name, and the host name with a number where two nodes share a
    machine."""

    id: str
    name: str
    address: str
    cpus: float
    gpus: float
    head: bool

    @property
    def resources(self) -> Resources:
        """The node as the placement plan uses it."""
        return Resources(node=self.name, cpus=self.cpus, gpus=self.gpus)


def living_nodes() -> list[RayNode]:
    """The living nodes of the cluster that this process has joined: the head first, then sorted by name."""
    return nodes_of(ray_module().nodes())


def nodes_of(told: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """Nodes from the output of `ray.nodes()`, in an order that does not depend on Ray's."""
    alive = [_node(node) for node in told if node["Alive"]]
    return _with_unique_names(sorted(alive, key=_order))


def _node(told: Mapping[str, Any]) -> RayNode:
    has = told["Resources"]
    return RayNode(
        id=told["NodeID"],
        name=_name(told),
        address=told["NodeManagerAddress"],
        cpus=has.get("CPU", 0.0),
        gpus=has.get("GPU", 0.0),
        head=HEAD_RESOURCE in has,
    )


def _name(told: Mapping[str, Any]) -> str:
    """The node's name. Ray names a node without a name by its address; the host name is more readable."""
    given, address = told.get("NodeName"), told["NodeManagerAddress"]
    return str(given if given and given != address else told["NodeManagerHostname"] or address)


def _with_unique_names(nodes: Sequence[RayNode]) -> list[RayNode]:
    hosts, addresses = Counter(node.name for node in nodes), Counter(node.address for node in nodes)
    seen = Counter[str]()
    unique = []
    for node in nodes:
        seen[node.name] += 1
        alone = node.address if addresses[node.address] == 1 else f"{node.name}#{seen[node.name]}"
        unique.append(replace(node, name=alone) if hosts[node.name] > 1 else node)
    return unique


def _order(node: RayNode) -> tuple[Any, ...]:
    return not node.head, _natural(node.name), _natural(node.address), node.id


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts `n10` after `n9`: groups of digits compare as numbers."""
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
