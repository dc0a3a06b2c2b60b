"""Nodes as Ray tells of them: told apart by id, named so that people can, in an order that stays."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.cluster import ray_joining
from rlhf.cluster.ray_joining import Peer, chosen, names_a_port
from rlhf.cluster.ray_nodes import HEAD_RESOURCE, nodes_of
from rlhf.errors import PlacementError


def told(id: str, host: str, *, head: bool = False, alive: bool = True, **resources: float) -> dict[str, Any]:
    has = resources | ({HEAD_RESOURCE: 1.0} if head else {})
    return {
        "NodeID": id, "NodeManagerHostname": host, "NodeManagerAddress": "10.0.0.1", "Alive": alive, "Resources": has
    }  # fmt: skip


def test_the_head_comes_first_and_numbers_in_names_count() -> None:
    nodes = nodes_of([told("c", "n10"), told("b", "n9"), told("a", "n2"), told("h", "n99", head=True)])
    assert [node.name for node in nodes] == ["n99", "n2", "n9", "n10"]


def test_two_nodes_of_one_host_get_names_of_their_own_in_the_order_of_their_ids() -> None:
    nodes = nodes_of([told("b", "host"), told("c", "other"), told("a", "host", head=True)])
    assert [(node.name, node.id) for node in nodes] == [("host#1", "a"), ("host#2", "b"), ("other", "c")]


def test_the_dead_do_not_count() -> None:
    assert [node.id for node in nodes_of([told("a", "n1", alive=False), told("b", "n1")])] == ["b"]


def test_a_node_has_what_ray_says_and_else_nothing() -> None:
    full, empty = nodes_of([told("a", "n1", CPU=96, GPU=8), told("b", "n2")])
    assert (full.resources.cpus, full.resources.gpus) == (96, 8)
    assert (empty.resources.cpus, empty.resources.gpus) == (0, 0)


def test_of_two_nodes_on_a_machine_the_one_on_the_way_to_the_head_is_joined() -> None:
    here, beside = Peer(id="a", address="10.9.0.1"), Peer(id="b", address="10.9.0.2")
    assert chosen([here, beside], "10.9.0.2") == {"_node_ip_address": "10.9.0.2"}
    assert chosen([here], "10.9.0.1") == {}
    assert chosen([here, beside], "10.9.0.3") == {}


def test_a_machine_that_is_no_node_of_the_cluster_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_joining, "ask_for_peers", lambda address: [Peer(id="a", address="10.9.0.1")])
    monkeypatch.setattr(ray_joining, "running_here", lambda: {"b"})
    monkeypatch.setattr(ray_joining, "KNOCK_SECONDS", 0.2)
    with pytest.raises(PlacementError, match=r"this machine is not a node of the Ray cluster at '10\.9\.0\.1:6379'"):
        ray_joining.knock("10.9.0.1:6379")


def test_only_a_host_and_a_port_are_asked_before_ray_is() -> None:
    assert names_a_port("10.0.0.1:6379")
    assert not any(names_a_port(other) for other in ("auto", "local", "ray://10.0.0.1:10001", "10.0.0.1:", ":6379"))
