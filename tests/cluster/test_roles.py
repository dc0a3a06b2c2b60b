"""What a run asks for: the table that people see, and the one line they get when there is too little."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from rlhf.cluster.machine import this_machine
from rlhf.cluster.roles import Resources, Role, check_resources, role_table, roles_with_room
from rlhf.errors import PlacementError

LAPTOP = Resources(node="laptop", cpus=2)
SERVERS = [Resources(node=name, cpus=96, gpus=8) for name in "ab"]
ENGINE = Role(name="engine", count=2, cpus=0.5, factory="m:E", hint="rollout.engines", size_hint="rollout.size")
RANK = Role(name="rank", count=2, cpus=0.5, factory="m:R", hint="trainer.deepspeed.ranks")


def test_the_table_has_a_line_for_each_role() -> None:
    engines = replace(ENGINE, cpus=4, gpus=2, shares_with="rank")
    assert role_table([replace(RANK, count=4, gpus=1), engines, replace(RANK, name="reward")]).splitlines() == [
        "role    workers  cores  threads       GPUs",
        "rank          4    0.5        1          1",
        "engine        2      4        4  2 of rank",
        "reward        2    0.5        1          -",
    ]


def test_threads_are_the_floor_of_the_cores_and_at_least_one() -> None:
    assert [replace(RANK, cpus=cpus).threads for cpus in (0.2, 1, 3.9)] == [1, 1, 3]


def test_what_fits_exactly_is_accepted_also_in_shares_and_on_shared_gpus() -> None:
    check_resources([ENGINE, RANK], [LAPTOP])
    check_resources([replace(ENGINE, count=20, cpus=0.1)], [LAPTOP])
    check_resources([replace(RANK, count=16, gpus=1), replace(ENGINE, gpus=8, shares_with="rank")], SERVERS)


@pytest.mark.parametrize(
    ("roles", "nodes", "message"),
    [
        (
            [replace(ENGINE, cpus=1), replace(RANK, cpus=1)],
            [LAPTOP],
            "2 engine x 1 core and 2 rank x 1 core: 4 cores asked, this machine has 2; "
            "lower rollout.engines or trainer.deepspeed.ranks",
        ),
        (
            [replace(ENGINE, count=1, gpus=1), RANK],
            [LAPTOP],
            "1 engine x 1 GPU: 1 GPU asked, this machine has 0; lower rollout.engines",
        ),
        (
            [replace(ENGINE, count=1, gpus=16)],
            SERVERS,
            "engine-0 needs 16 GPUs on one node, and the 2 nodes have no node with more than 8; lower rollout.size",
        ),
        (
            [replace(RANK, count=1, cpus=100)],
            SERVERS,
            "rank-0 needs 100 cores on one node, and the 2 nodes have no node with more than 96; "
            "lower trainer.deepspeed.ranks",
        ),
        (
            [replace(ENGINE, gpus=1.5)],
            SERVERS,
            "engine asks for 1.5 GPUs, and a worker has whole ones or a share of one; change rollout.size",
        ),
    ],
)
def test_too_little_is_refused_in_one_line_that_names_it_and_what_to_change(
    roles: list[Role], nodes: list[Resources], message: str
) -> None:
    with pytest.raises(PlacementError) as refused:
        check_resources(roles, nodes)
    assert str(refused.value) == message
    assert refused.value.exit_code == 2


def test_this_machine_counts_the_cores_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert this_machine("here") == Resources(node="here", cpus=len(os.sched_getaffinity(0)), gpus=0)


def test_where_room_is_missing_there_are_fewer_workers_of_roles_that_allow_it() -> None:
    engines = replace(ENGINE, count=4, cpus=1, least=1)
    for nodes, left in (([LAPTOP] * 3, 4), ([LAPTOP], 1), ([replace(LAPTOP, cpus=0.5)], 1)):
        assert [role.count for role in roles_with_room([RANK, engines], nodes)] == [2, left]
    with pytest.raises(PlacementError):
        check_resources(roles_with_room([RANK, ENGINE], [replace(LAPTOP, cpus=1)]), [replace(LAPTOP, cpus=1)])
