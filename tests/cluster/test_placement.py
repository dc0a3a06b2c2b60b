"""Bundles that are asked of Ray, and placements that are read from it; the Ray here only answers."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.cluster import placement
from rlhf.cluster.placement import HEAD_RESOURCE, Reservation, bundles_of, nodes_of, placement_table
from rlhf.cluster.ray_connection import quoted_python
from rlhf.cluster.roles import Resources, Role
from rlhf.errors import PlacementError

NAMES = {"id-a": "a", "id-b": "b"}
NODES = {id: Resources(node=name, cpus=8, gpus=8) for id, name in NAMES.items()}
RANKS = Role(name="rank", count=4, gpus=1, factory="m:R", layout="spread")
ENGINES = Role(name="engine", count=2, gpus=2, factory="m:E", shares_with="rank")
SERVERS = Role(name="server", count=3, cpus=2, factory="m:S")


class FakeRay:
    """Places every second bundle on the node `b`, and records what was asked for."""

    def __init__(self) -> None:
        self.util = self
        self.asked: list[tuple[list[dict[str, float]], str]] = []
        self.selectors: list[dict[str, str]] = []

    def placement_group(
        self, bundles: list[dict[str, float]], strategy: str, bundle_label_selector: list[dict[str, str]]
    ) -> int:
        assert len(bundle_label_selector) == len(bundles)
        self.asked.append((bundles, strategy))
        self.selectors.append(bundle_label_selector[0])
        return len(self.asked) - 1

    def placement_group_table(self, group: int) -> dict[str, Any]:
        bundles, _ = self.asked[group]
        return {"bundles_to_node_id": {number: ["id-b", "id-a"][number % 2] for number in range(len(bundles))}}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(placement, "ray_module", lambda: fake)
    return fake


def test_roles_that_are_spread_have_a_group_each_and_the_others_one(ray: FakeRay) -> None:
    Reservation([RANKS, SERVERS], NODES)
    assert ray.asked == [([{"CPU": 1.0, "GPU": 1}] * 4, "SPREAD"), ([{"CPU": 2}] * 3, "PACK")]


def test_workers_without_gpus_get_nodes_without_gpus_where_these_have_enough_cores(ray: FakeRay) -> None:
    Reservation([RANKS, SERVERS], {**NODES, "id-c": Resources(node="c", cpus=6)})
    Reservation([RANKS, SERVERS], {**NODES, "id-c": Resources(node="c", cpus=5)})
    assert [(selector, strategy) for selector, (_, strategy) in zip(ray.selectors, ray.asked, strict=True)] == [
        ({"ray.io/node-id": "in(id-c)"}, "PACK"), ({}, "SPREAD"), ({}, "SPREAD"), ({}, "PACK"),
    ]  # fmt: skip


def test_consecutive_ranks_share_a_node_and_a_table_has_a_line_for_role_and_node(ray: FakeRay) -> None:
    placed = Reservation([SERVERS, RANKS], NODES).placements(NAMES)
    assert [(at.worker, at.node, at.bundle) for at in placed] == [
        ("server-0", "a", 1), ("server-1", "b", 0), ("server-2", "b", 2),
        ("rank-0", "a", 1), ("rank-1", "a", 3), ("rank-2", "b", 0), ("rank-3", "b", 2),
    ]  # fmt: skip
    assert placement_table(placed).splitlines() == [
        "worker      node  cores  threads  GPUs",
        "server-0    a         2        2     -",
        "server-1…2  b         2        2     -",
        "rank-0…1    a         1        1     1",
        "rank-2…3    b         1        1     1",
    ]


def test_workers_that_share_gpus_are_in_one_bundle(ray: FakeRay) -> None:
    placed = Reservation([RANKS, ENGINES], NODES).placements(NAMES)
    assert ray.asked == [([{"CPU": 3.0, "GPU": 2}] * 2, "SPREAD")]
    assert [(at.worker, at.node, at.beside) for at in placed] == [
        ("rank-0", "a", ()), ("rank-1", "a", ()), ("rank-2", "b", ()), ("rank-3", "b", ()),
        ("engine-0", "a", ("rank-0", "rank-1")), ("engine-1", "b", ("rank-2", "rank-3")),
    ]  # fmt: skip


def test_workers_that_cannot_share_gpus_evenly_are_refused() -> None:
    ranks = Role(name="rank", count=3, gpus=1, factory="m:R", hint="ranks")
    engines = Role(name="engine", count=2, gpus=1, factory="m:E", hint="engines", shares_with="rank")
    with pytest.raises(PlacementError, match="2 engine of 1 GPUs cannot share those of 3 rank of 1; change engines"):
        bundles_of([ranks, engines])


def node(id: str, host: str, *, head: bool = False, alive: bool = True, **resources: float) -> dict[str, Any]:
    has = resources | ({HEAD_RESOURCE: 1.0} if head else {})
    return {
        "NodeID": id, "NodeManagerHostname": host, "NodeManagerAddress": "10.0.0.1", "Alive": alive, "Resources": has
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ([node("c", "n10"), node("b", "n9"), node("h", "n99", head=True)], {"h": "n99", "b": "n9", "c": "n10"}),
        ([node("b", "x"), node("c", "y"), node("a", "x", head=True)], {"a": "x#1", "b": "x#2", "c": "y"}),
        ([node("a", "n1", alive=False), node("b", "n1")], {"b": "n1"}),
    ],
    ids=["head first, then by number", "two nodes of one machine", "the dead do not count"],
)
def test_nodes_have_unique_names_in_an_order_that_stays(nodes: list[dict[str, Any]], names: dict[str, str]) -> None:
    found = nodes_of(nodes)
    assert {id: has.node for id, has in found.items()} == names
    assert list(found) == list(names)


def test_a_node_has_what_ray_says_and_else_nothing() -> None:
    full, empty = nodes_of([node("a", "n1", CPU=96, GPU=8), node("b", "n2")]).values()
    assert (full.cpus, full.gpus, empty.cpus, empty.gpus) == (96, 8, 0, 0)


def test_a_python_in_a_folder_with_spaces_is_quoted_for_rays_shell_and_any_other_is_left_to_ray() -> None:
    assert quoted_python("/a folder/python") == {"py_executable": "'/a folder/python'"}
    assert quoted_python("/folder/python") == {}
