"""The loop, on fakes: who is asked what, in which order, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rlhf.errors import PieceFailed
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.loop import Loop
from rlhf.types import Group, PolicyVersion, Updated
from tests.fakes import FakeLearner, FakeRollout, FakeTasks


class Boundary:
    """Notes the versions it sees; may stop the run at one of them."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.seen: list[tuple[PolicyVersion, bool]] = []
        self.stop_at = stop_at

    async def __call__(self, version: PolicyVersion, updated: Updated | None) -> bool:
        self.seen.append((version, updated is not None))
        return version == self.stop_at


def make(
    *,
    staleness: int = 0,
    updates: int = 3,
    rollout: FakeRollout | None = None,
    boundary: Boundary | None = None,
    learner: FakeLearner | None = None,
):
    learner, rollout, boundary = learner or FakeLearner(), rollout or FakeRollout(), boundary or Boundary()
    tickets = TicketBuffer(
        groups_per_update=2, max_staleness=staleness, updates=updates, refill_groups=0, failure_budget=1.0
    )
    loop = Loop(
        tasks=FakeTasks(), rollout=rollout, buffer=tickets, learner=learner, weights=learner,
        max_concurrent_groups=2 * (staleness + 1),
    )  # fmt: skip
    return loop, learner, rollout, tickets, boundary


async def test_a_synchronous_run_trains_every_group_on_the_version_that_played_it() -> None:
    loop, learner, rollout, tickets, boundary = make()
    await loop.run(3, boundary)
    assert learner.updates == [[0, 1], [2, 3], [4, 5]]
    assert [ticket.version for _, ticket in rollout.played] == [0, 0, 1, 1, 2, 2]
    assert tickets.accounts.in_flight == 0


async def test_the_task_of_a_group_is_that_of_its_ordinal() -> None:
    loop, _, rollout, _, boundary = make()
    await loop.run(3, boundary)
    assert all(task.id == str(ticket.ordinal) for task, ticket in rollout.played)


async def test_with_staleness_groups_are_played_ahead_and_trained_in_order() -> None:
    loop, learner, rollout, _, boundary = make(staleness=2, updates=6)
    await loop.run(6, boundary)
    assert [ordinal for batch in learner.updates for ordinal in batch] == list(range(12))
    assert [ticket.version for _, ticket in rollout.played][:6] == [0] * 6


async def test_a_slow_group_is_waited_for_and_not_dropped() -> None:
    loop, learner, *_, boundary = make(
        staleness=1, rollout=FakeRollout(lambda ticket: 500 if ticket.ordinal == 0 else 1)
    )
    await loop.run(3, boundary)
    assert learner.updates[0] == [0, 1]


async def test_engines_have_the_weights_before_anything_is_played_and_before_the_boundary_of_each_update() -> None:
    told: list[str] = []

    class Learner(FakeLearner):
        async def update(self, groups: Sequence[Group]) -> Updated:
            told.append("update")
            return await super().update(groups)

        async def publish(self) -> PolicyVersion:
            told.append("publish")
            return await super().publish()

    class Telling(Boundary):
        async def __call__(self, version: PolicyVersion, updated: Updated | None) -> bool:
            told.append(f"boundary {version}")
            return await super().__call__(version, updated)

    loop, learner, rollout, *_, boundary = make(updates=4, boundary=Telling(), learner=Learner())
    learner.version = loop.version = 2  # a resumed run
    await loop.run(4, boundary)
    assert told == ["publish", "boundary 2", "update", "publish", "boundary 3", "update", "publish", "boundary 4"]
    assert {ticket.version for _, ticket in rollout.played} == {2, 3}


async def test_the_boundary_can_stop_the_run_and_the_last_update_is_accounted_for() -> None:
    loop, learner, _, tickets, boundary = make(updates=100, boundary=Boundary(stop_at=2))
    await loop.run(100, boundary)
    assert len(learner.updates) == 2
    assert tickets.accounts.trained == 4
    assert tickets.accounts.balanced


async def test_what_a_player_raises_ends_the_run() -> None:
    class Broken(FakeRollout):
        async def __call__(self, task, ticket):
            raise RuntimeError("broken engine")

    loop, *_, boundary = make(rollout=Broken())
    with pytest.raises(ExceptionGroup) as raised:
        await loop.run(3, boundary)
    assert raised.group_contains(RuntimeError, match="broken engine")


async def test_a_player_that_ends_as_if_it_were_cancelled_ends_the_run_by_name() -> None:
    class Leaking(FakeRollout):
        async def __call__(self, task, ticket):
            async def cancels_itself() -> None:
                current = asyncio.current_task()
                assert current
                current.cancel()
                await asyncio.sleep(1)

            await asyncio.gather(cancels_itself())

    loop, *_, boundary = make(rollout=Leaking())
    with pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(loop.run(3, boundary), 10)
    assert raised.group_contains(PieceFailed, match="user code ended the play of group 0: CancelledError")
