"""What every plan keeps, whatever the nodes and the workers."""

from __future__ import annotations

from collections import Counter
from functools import cache

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlhf.cluster.layout import Layout
from rlhf.cluster.plan import plan
from rlhf.cluster.resources import Plan, Resources, Role
from rlhf.errors import PlacementError

LAYOUTS: tuple[Layout, ...] = ("fill", "pack", "spread")
CORES, GPUS = st.sampled_from([0.1, 0.5, 1, 2, 3]), st.sampled_from([0, 0, 0.25, 0.5, 1, 2, 4])
MANY_CORES = 10_000


@st.composite
def clusters(draw: st.DrawFn) -> list[Resources]:
    sizes = draw(st.lists(st.tuples(st.integers(2, 32), st.sampled_from([0, 4, 8])), min_size=2, max_size=8))
    return [Resources(node=f"n{at}", cpus=cpus, gpus=gpus) for at, (cpus, gpus) in enumerate(sizes)]


@st.composite
def role_lists(draw: st.DrawFn) -> list[Role]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 8), CORES, GPUS, st.sampled_from(LAYOUTS)), min_size=1, max_size=3))
    return [
        Role(name=f"role{at}", count=count, cpus=cpus, gpus=gpus, layout=layout, factory="m:R")
        for at, (count, cpus, gpus, layout) in enumerate(shapes)
    ]


def planned(roles: list[Role], nodes: list[Resources]) -> Plan | None:
    try:
        return plan(roles, nodes)
    except PlacementError:
        return None


def feasible(roles: list[Role], nodes: list[Resources]) -> Plan:
    """The plan; an example without one says nothing, and hypothesis fails where most are such."""
    made = planned(roles, nodes)
    assume(made is not None)
    assert made is not None
    return made


@given(role_lists(), clusters())
@settings(max_examples=300, deadline=None)
def test_all_are_placed_in_order_and_no_node_holds_more_than_it_has(roles: list[Role], nodes: list[Resources]) -> None:
    made = feasible(roles, nodes)
    assert [(p.role, p.index) for p in made.placements] == [(r.name, at) for r in roles for at in range(r.count)]
    for node in nodes:
        here = [placed for placed in made.placements if placed.node == node.node]
        assert sum(placed.cpus for placed in here) <= node.cpus + 1e-6
        assert sum(placed.gpus for placed in here) <= node.gpus + 1e-6


@given(role_lists(), clusters())
@settings(max_examples=300, deadline=None)
def test_workers_of_a_role_follow_the_order_of_the_nodes(roles: list[Role], nodes: list[Resources]) -> None:
    made = feasible(roles, nodes)
    at = {node.node: place for place, node in enumerate(nodes)}
    for role in roles:
        places = [at[placed.node] for placed in made.of(role.name)]
        assert places == sorted(places)


@given(role_lists(), clusters())
@settings(max_examples=300, deadline=None)
def test_a_worker_without_a_gpu_is_beside_gpus_only_where_the_other_nodes_are_full(
    roles: list[Role], nodes: list[Resources]
) -> None:
    made = feasible(roles, nodes)
    gpus = {node.node: node.gpus for node in nodes}
    free = {node.node: node.cpus for node in nodes}
    for placed in made.placements:
        free[placed.node] -= placed.cpus
    for placed in made.placements:
        if not placed.gpus and gpus[placed.node]:
            assert all(left < placed.cpus - 1e-6 for node, left in free.items() if not gpus[node])


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.5, 1, 2, 4, 8]), st.sampled_from(LAYOUTS)), max_size=4),
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_where_sizes_divide_each_other_a_plan_is_refused_only_when_there_is_none(
    shapes: list[tuple[int, float, Layout]], capacities: list[int]
) -> None:
    nodes = [Resources(node=f"n{at}", cpus=MANY_CORES, gpus=gpus) for at, gpus in enumerate(capacities)]
    roles = [
        Role(name=f"r{at}", count=count, cpus=1, gpus=gpus, layout=layout, factory="m:R")
        for at, (count, gpus, layout) in enumerate(shapes)
    ]
    items = sorted((int(2 * role.gpus) for role in roles for _ in range(role.count)), reverse=True)
    assert (planned(roles, nodes) is not None) == fits(tuple(items), tuple(2 * gpus for gpus in capacities))


@cache
def fits(items: tuple[int, ...], rooms: tuple[int, ...]) -> bool:
    """Brute force: whether some choice of rooms holds all items."""
    if not items:
        return True
    if sum(items) > sum(rooms):
        return False
    return any(
        fits(items[1:], tuple(sorted((*rooms[:at], room - items[0], *rooms[at + 1 :]))))
        for at, room in enumerate(rooms)
        if room >= items[0]
    )


@given(st.integers(0, 12), st.lists(st.integers(0, 8), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_packed_ranks_are_on_as_few_nodes_as_can_be(count: int, gpus: list[int]) -> None:
    made = feasible(*one_role("pack", count, gpus))
    largest = sorted(gpus, reverse=True)
    fewest = next(few for few in range(len(gpus) + 1) if sum(largest[:few]) >= count)
    assert len({placed.node for placed in made.placements}) == fewest


@given(st.integers(0, 12), st.lists(st.integers(0, 8), min_size=2, max_size=6))
@settings(max_examples=200, deadline=None)
def test_spread_ranks_are_never_two_more_on_a_node_than_on_one_that_has_room(count: int, gpus: list[int]) -> None:
    made = feasible(*one_role("spread", count, gpus))
    held = Counter({f"n{at}": 0 for at in range(len(gpus))})
    held.update(placed.node for placed in made.placements)
    most = max(held.values())
    assert all(held[f"n{at}"] >= most - 1 or held[f"n{at}"] == room for at, room in enumerate(gpus))


def one_role(layout: Layout, count: int, gpus: list[int]) -> tuple[list[Role], list[Resources]]:
    nodes = [Resources(node=f"n{at}", cpus=MANY_CORES, gpus=room) for at, room in enumerate(gpus)]
    return [Role(name="rank", count=count, cpus=1, gpus=1, layout=layout, factory="m:R")], nodes


@given(clusters(), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.sampled_from(LAYOUTS))
@settings(max_examples=100, deadline=None)
def test_who_shares_gpus_is_on_the_node_of_those_it_shares_with_and_takes_none_of_its_own(
    nodes: list[Resources], engines: int, size: int, layout: Layout
) -> None:
    ranks = Role(name="rank", count=engines * size, cpus=0.1, gpus=1, layout=layout, factory="m:R")
    sharing = Role(name="engine", count=engines, cpus=0.1, gpus=size, factory="m:E", shares_with="rank")
    made = feasible([ranks, sharing], nodes)
    home = {placed.worker: placed.node for placed in made.placements}
    for engine in made.of("engine"):
        assert {home[worker] for worker in engine.beside} == {engine.node}
        assert len(engine.beside) == size
    assert [rank for engine in made.of("engine") for rank in engine.beside] == [p.worker for p in made.of("rank")]
    for node in nodes:
        assert sum(placed.own_gpus for placed in made.placements if placed.node == node.node) <= node.gpus
