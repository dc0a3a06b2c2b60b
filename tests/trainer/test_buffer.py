"""The buffer's promises, checked by simulation over many random runs."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import FailureBudgetSpent
from rlhf.trainer.buffer import Accounts, TicketBuffer, lost_samples
from rlhf.types import Failed, Filtered, Group, Task, Ticket
from tests.trainer.made import made_groups, without_score

TASK = Task(id="t", messages=())


def group(ticket: Ticket) -> Group:
    return Group(ticket=ticket, task=TASK, samples=())


def buffer(**changes: object) -> TicketBuffer:
    settings = {
        "groups_per_update": 4, "max_staleness": 0, "updates": 5, "refill_groups": 8, "failure_budget": 1.0,
    } | changes  # fmt: skip
    return TicketBuffer(**settings)


async def simulate(tickets: TicketBuffer, *, updates: int, players: int, chance: random.Random, spoiled: float) -> list:
    """Play a whole run with groups that take random turns of the event loop; return what each update trained."""
    trained: list[tuple[int, list[Ticket]]] = []

    async def play() -> None:
        while True:
            ticket = await tickets.admit()
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            fate = chance.random()
            if fate < spoiled / 2:
                tickets.settle(ticket, Failed(kind="test"))
            elif fate < spoiled:
                tickets.settle(ticket, Filtered(group=group(ticket), reason="test"))
            else:
                tickets.settle(ticket, group(ticket))

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(play()) for _ in range(players)]
        for version in range(updates):
            groups = await tickets.take()
            trained.append((version, [g.ticket for g in groups]))
            assert tickets.accounts.balanced
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            tickets.advance(version + 1)
        for player in running:
            player.cancel()
    return trained


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    staleness=st.sampled_from([0, 1, 4]),
    size=st.integers(1, 7),
    spoiled=st.sampled_from([0.0, 0.3, 0.7]),
    updates=st.integers(1, 9),
)
def test_every_run_ends_in_order_within_its_staleness_and_with_balanced_accounts(
    seed: int, staleness: int, size: int, spoiled: float, updates: int
) -> None:
    async def run() -> None:
        tickets = buffer(groups_per_update=size, max_staleness=staleness, updates=updates)
        trained = await asyncio.wait_for(
            simulate(
                tickets, updates=updates, players=(staleness + 1) * size, chance=random.Random(seed), spoiled=spoiled
            ),
            timeout=20,
        )
        ordinals = [ticket.ordinal for _, batch in trained for ticket in batch]
        assert ordinals == sorted(set(ordinals)), "trained in order, once"
        assert all(len(batch) == size for _, batch in trained), "never short"
        assert all(version - ticket.version <= staleness for version, batch in trained for ticket in batch)
        accounts = tickets.accounts
        assert accounts.balanced
        assert accounts.trained == updates * size
        assert accounts.in_flight == 0, "nothing starts that cannot be trained before the run ends"

    asyncio.run(run())


async def test_filtering_stops_when_the_refill_budget_of_an_update_is_spent() -> None:
    tickets = buffer(groups_per_update=1, updates=2, refill_groups=2)
    kept = []
    for _ in range(3):
        ticket = await tickets.admit()
        kept.append(tickets.settle(ticket, Filtered(group=group(ticket), reason="equal")))
    assert kept == [False, False, True]
    assert [g.ticket.ordinal for g in await tickets.take()] == [2]
    tickets.advance(1)
    again = [await tickets.admit()]
    while not tickets.settle(again[-1], Filtered(group=group(again[-1]), reason="equal")):
        again.append(await tickets.admit())
    assert len(again) == 3, "a new update, a new budget"


def test_of_a_group_that_failed_every_sample_is_lost_also_those_with_a_score() -> None:
    (whole,) = made_groups(1, 4)
    assert lost_samples(Failed(kind="timeout", samples=whole.samples)) == (4, 4)
    assert lost_samples(without_score(whole, 1)) == (1, 4)


async def test_the_commonest_failure_is_in_the_error_that_ends_the_run() -> None:
    tickets = buffer(groups_per_update=1, failure_budget=0.5, updates=1000)
    raised = Failed(kind="raised", detail="KeyError: 'answer' (at my_reward.py:7)")
    for failure in (*[Failed(kind="timeout")] * 30, *[raised] * 34):
        tickets.settle(await tickets.admit(), failure)
    with pytest.raises(FailureBudgetSpent, match=r"most often raised: KeyError: 'answer' \(at my_reward.py:7\)$"):
        await tickets.take()


async def play_alone(tickets: TicketBuffer, fates: str) -> None:
    """Groups one after another: `F` fails, `f` is filtered, `.` is trained at once, in an update of its own."""
    for fate in fates:
        ticket = await tickets.admit()
        if fate == ".":
            tickets.settle(ticket, group(ticket))
            await tickets.take()
            tickets.advance(tickets.version + 1)
        elif fate == "f":
            tickets.settle(ticket, Filtered(group=group(ticket), reason="equal rewards"))
        else:
            tickets.settle(ticket, Failed(kind="timeout"))


async def is_given_up(tickets: TicketBuffer) -> bool:
    try:
        await asyncio.wait_for(tickets.take(), timeout=0.02)
    except FailureBudgetSpent:
        return True
    except TimeoutError:
        return False
    return False


@pytest.mark.parametrize(
    ("size", "fates", "given_up"),
    [
        (1, "F" * 63, False),
        (1, "F" * 64, True),
        (1, "F." * 32, False),
        (1, "F." * 31 + "FF", True),
        (1, "F" * 32 + "." * 33 + "F" * 31, False),
        (1, "." * 100 + "F" * 33, True),
        (1, "f" * 100, False),
        (20, "F" * 79, False),
        (20, "F" * 80, True),
    ],
    ids=["too-few-to-say", "all", "just-the-budget", "one-more", "long-ago", "lately", "filtered", "of-a-large-update",
         "of-a-large-update-all"],
)  # fmt: skip
async def test_failures_are_counted_over_the_last_groups_and_may_be_as_many_as_the_budget(
    size: int, fates: str, given_up: bool
) -> None:
    tickets = buffer(groups_per_update=size, failure_budget=0.5, updates=1000, refill_groups=1000)
    await play_alone(tickets, fates)
    assert await is_given_up(tickets) is given_up


def test_accounts_that_do_not_add_up_are_not_balanced() -> None:
    sound = {"admitted": 15, "trained": 1, "filtered": 2, "failed": 4, "in_flight": 8}
    assert Accounts(**sound).balanced
    assert not any(Accounts(**(sound | {name: count + 1})).balanced for name, count in sound.items())


async def test_what_was_settled_is_never_less_than_what_an_update_takes() -> None:
    tickets = buffer(groups_per_update=2, max_staleness=1, updates=3, refill_groups=0)
    issued = [await tickets.admit() for _ in range(4)]
    assert [ticket.version for ticket in issued] == [0, 0, 0, 0]
    tickets.settle(issued[0], group(issued[0]))
    tickets.settle(issued[2], group(issued[2]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(tickets.take(), timeout=0.02)
    tickets.settle(issued[1], group(issued[1]))
    assert [g.ticket.ordinal for g in await tickets.take()] == [0, 1]
    assert tickets.accounts == Accounts(admitted=4, trained=0, filtered=0, failed=0, in_flight=4)
    assert tickets.settled_accounts == Accounts(admitted=2, trained=2, filtered=0, failed=0, in_flight=0)
    tickets.advance(1)
    assert tickets.accounts == Accounts(admitted=4, trained=2, filtered=0, failed=0, in_flight=2)
    assert [(await tickets.admit()).version for _ in range(2)] == [1, 1]
    assert (tickets.next_ordinal, tickets.outstanding) == (6, (2, 3, 4, 5))


async def test_a_resume_has_so_many_groups_to_play_as_updates_are_left() -> None:
    tickets = buffer(groups_per_update=2, max_staleness=4, updates=5, version=4, next_ordinal=11, reissue=(9, 8))
    assert tickets.outstanding == (8, 9)
    assert [(await tickets.admit()).ordinal for _ in range(2)] == [8, 9]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(tickets.admit(), timeout=0.02)


async def test_the_failure_budget_counts_samples_also_of_groups_that_train_with_the_others() -> None:
    """Losing five of eight for ever leaves every group trainable, and is more than half of what was played."""
    for lost, ends in ((4, False), (5, True)):
        tickets = buffer(groups_per_update=1, failure_budget=0.5, updates=1000)
        for version in range(64):
            ticket = await tickets.admit()
            (whole,) = made_groups(1, 8)
            for index in range(lost):
                whole = without_score(whole, index)
            tickets.settle(ticket, replace(whole, ticket=ticket))
            if version < 63:
                await tickets.take()
                tickets.advance(version + 1)
        assert tickets.lost_samples == 64 * lost
        if ends:
            with pytest.raises(FailureBudgetSpent, match="62% of the samples"):
                await tickets.take()
        else:
            assert len(await tickets.take()) == 1


async def test_a_resume_goes_on_with_the_accounts_of_its_checkpoint() -> None:
    before = buffer(groups_per_update=2, max_staleness=1, updates=5, refill_groups=1)
    issued = [await before.admit() for _ in range(4)]
    before.settle(issued[0], Filtered(group=group(issued[0]), reason="equal rewards"))
    before.settle(issued[1], Failed(kind="timeout"))
    for ticket in (issued[2], issued[3], await before.admit()):
        before.settle(ticket, group(ticket))
    await before.take()
    settled = before.settled_accounts
    assert settled == Accounts(admitted=4, trained=2, filtered=1, failed=1, in_flight=0)
    after = buffer(
        groups_per_update=2, max_staleness=1, updates=5, version=1,
        next_ordinal=before.next_ordinal, reissue=before.outstanding, accounts=settled,
    )  # fmt: skip
    assert (await after.admit()).ordinal == 4
    assert after.accounts == Accounts(admitted=5, trained=2, filtered=1, failed=1, in_flight=1)
    assert after.accounts.balanced


async def test_a_buffer_that_ends_gives_no_groups_also_to_a_learner_that_waits() -> None:
    tickets = buffer()
    taking = asyncio.ensure_future(tickets.take())
    assert not tickets.awaited
    await asyncio.sleep(0)
    assert tickets.awaited
    tickets.end()
    assert await taking == await tickets.take() == []
    assert not tickets.awaited
