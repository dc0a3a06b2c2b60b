"""A plan is a pure function: these are the tables people see and the one line they get when it does not fit."""

from __future__ import annotations

import os

import pytest

from rlhf.cluster.described import describe
from rlhf.cluster.free import Free
from rlhf.cluster.machine import this_machine
from rlhf.cluster.plan import plan
from rlhf.cluster.resources import Placement, Resources, Role
from rlhf.errors import PlacementError

LAPTOP = Resources(node="laptop", cpus=2)


def engines(count: int, cpus: float, **more: float) -> Role:
    hint = "rollout.engines or rollout.cpus_per_engine"
    return Role(name="engine", count=count, cpus=cpus, factory="m:E", hint=hint, **more)


def ranks(count: int, cpus: float) -> Role:
    return Role(name="rank", count=count, cpus=cpus, factory="m:R", hint="trainer.deepspeed.ranks")


def test_two_engines_and_two_ranks_share_a_laptop() -> None:
    table = describe(plan([engines(2, 0.5), ranks(2, 0.5)], [LAPTOP]))
    assert table.splitlines() == [
        "worker    node    cores  threads  GPUs",
        "engine-0  laptop    0.5        1     -",
        "engine-1  laptop    0.5        1     -",
        "rank-0    laptop    0.5        1     -",
        "rank-1    laptop    0.5        1     -",
    ]


def test_workers_go_to_the_first_node_that_still_has_room() -> None:
    nodes = [Resources(node="a", cpus=4, gpus=1), Resources(node="b", cpus=4, gpus=2)]
    placed = plan([engines(2, 2, gpus=1), ranks(2, 2)], nodes)
    assert [p.worker for p in placed.placements] == ["engine-0", "engine-1", "rank-0", "rank-1"]
    assert [p.node for p in placed.placements] == ["a", "b", "a", "b"]
    second = Placement(worker="engine-1", role="engine", index=1, node="b", cpus=2, gpus=1, threads=2)
    assert placed.of("engine")[1] == second


def test_threads_are_the_floor_of_the_cores_and_at_least_one() -> None:
    placed = plan([engines(1, 0.2), ranks(1, 3.9)], [Resources(node="n", cpus=8)])
    assert [p.threads for p in placed.placements] == [1, 3]


def test_shares_that_only_rounding_makes_too_much_still_fit() -> None:
    assert len(plan([engines(20, 0.1)], [LAPTOP]).placements) == 20


def test_four_cores_asked_of_two_are_refused_in_one_line_that_says_what_to_change() -> None:
    with pytest.raises(PlacementError) as refused:
        plan([engines(2, 1), ranks(2, 1)], [LAPTOP])
    assert str(refused.value) == (
        "2 engine x 1 core and 2 rank x 1 core: 4 cores asked, this machine has 2; "
        "lower rollout.engines or rollout.cpus_per_engine or trainer.deepspeed.ranks"
    )
    assert refused.value.exit_code == 2


def test_a_gpu_asked_of_a_laptop_names_only_the_role_that_asks() -> None:
    with pytest.raises(PlacementError, match=r"^1 engine x 1 GPU: 1 GPU asked, this machine has 0; lower rollout\."):
        plan([engines(1, 0.5, gpus=1), ranks(1, 0.5)], [LAPTOP])


def test_a_worker_that_no_single_node_can_hold_is_refused() -> None:
    nodes = [Resources(node="a", cpus=2), Resources(node="b", cpus=2)]
    with pytest.raises(PlacementError, match="engine-0 needs 3 cores on one node, and the 2 nodes have no node with"):
        plan([engines(1, 3)], nodes)


def test_this_machine_counts_the_cores_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert this_machine("here") == Resources(node="here", cpus=len(os.sched_getaffinity(0)), gpus=0)


def test_an_engine_is_whole_on_one_node_and_refused_by_name_where_none_is_large_enough() -> None:
    engine = Role(
        name="engine", count=1, cpus=1, gpus=16, factory="m:E", hint="rollout.engines",
        size_hint="rollout.tensor_parallel_size",
    )  # fmt: skip
    nodes = [Resources(node=name, cpus=96, gpus=8) for name in "ab"]
    with pytest.raises(PlacementError) as refused:
        plan([engine], nodes)
    assert str(refused.value) == (
        "engine-0 needs 16 GPUs on one node, and the 2 nodes have no node with more than 8; "
        "lower rollout.tensor_parallel_size"
    )


def test_ranks_that_leave_no_node_whole_make_room_for_an_engine() -> None:
    spread = Role(name="rank", count=8, gpus=1, layout="spread", factory="m:R")
    nodes = [Resources(node=name, cpus=96, gpus=8) for name in "ab"]
    placed = plan([spread, engines(1, 1, gpus=8)], nodes)
    assert {p.node for p in placed.of("engine")} == {"a"}
    assert {p.node for p in placed.of("rank")} == {"b"}
    assert [p.role for p in placed.placements] == ["rank"] * 8 + ["engine"], "still in the order given"


def test_of_many_workers_a_line_stands_for_neighbours_that_are_alike() -> None:
    nodes = [Resources(node=f"n{at}", cpus=96, gpus=gpus) for at, gpus in enumerate((8, 8, 0, 8, 4), start=1)]
    learners = Role(name="rank", count=28, gpus=1, factory="m:R")
    assert describe(plan([learners, engines(1, 0.5)], nodes)).splitlines() == [
        "workers     nodes  on each  cores  threads  GPUs",
        "rank-0…15   n1…n2        8      1        1     1",
        "rank-16…23  n4           8      1        1     1",
        "rank-24…27  n5           4      1        1     1",
        "engine-0    n3           1    0.5        1     -",
    ]


def test_what_cannot_be_cut_to_fit_is_refused_by_the_first_that_has_no_place() -> None:
    nodes = [Resources(node=name, cpus=96, gpus=3) for name in "ab"]
    with pytest.raises(PlacementError) as refused:
        plan([engines(3, 1, gpus=2)], nodes)
    assert str(refused.value) == (
        "engine-2 needs 1 core and 2 GPUs on one node, and the 2 nodes have no node with so much left; "
        "lower rollout.engines or rollout.cpus_per_engine"
    )


def test_a_gpu_and_a_half_is_refused() -> None:
    with pytest.raises(
        PlacementError, match=r"^engine asks for 1\.5 GPUs, and a worker has whole ones or a share of one"
    ):
        plan([engines(1, 1, gpus=1.5)], [Resources(node="a", cpus=96, gpus=8)])


def test_shares_of_gpus_do_not_add_up_over_two_gpus() -> None:
    nodes = [Resources(node="a", cpus=96, gpus=2)]
    assert plan([engines(2, 1, gpus=0.6), ranks(2, 1)], nodes)
    with pytest.raises(PlacementError, match=r"engine-2 needs 1 core and 0\.6 GPUs on one node"):
        plan([engines(3, 1, gpus=0.6)], nodes)


def test_a_thousand_nodes_are_planned_with_work_that_grows_with_nodes_and_workers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    monkeypatch.setattr(Free, "room", lambda self, role, room=Free.room: looks.append(1) or room(self, role))
    nodes = [Resources(node=f"n{at}", cpus=96, gpus=8) for at in range(1024)]
    learners = Role(name="rank", count=4096, gpus=1, layout="spread", factory="m:R")
    placed = plan([learners, engines(1024, 1, gpus=4)], nodes)
    assert len(placed.placements) == 5120
    assert len(looks) == 2 * 1024, "each node is looked at once a role, however many workers it has"
    assert len(describe(placed).splitlines()) == 3
