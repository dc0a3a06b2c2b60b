"""A loop whose reward server breaks in every way: each reply has its documented outcome, and the books balance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from rlhf.config import build
from rlhf.errors import FailureBudgetSpent
from rlhf.protocols import Rollout
from rlhf.reward.config import RewardConfig
from rlhf.reward.live import LiveReward
from rlhf.reward.reward import make_reward
from rlhf.rollout.group import GroupRollout
from rlhf.trainer.buffer import TicketBuffer
from rlhf.trainer.loop import Loop
from rlhf.types import Failed, Filtered, Group, PolicyVersion, Sample, Sampling, Scored, Task, Ticket, Unscored, Updated
from tests.fakes import FakeEngine, FakeLearner, FakeRenderer, FakeTasks
from tests.pace import scaled
from tests.servers import DROP, HANG, Asked, Reply, nobody, response, scripted

pytestmark = pytest.mark.waits

GROUP, UPDATES, GROUPS = 8, 3, 4
OUTCOMES: dict[str, tuple[Reply, str]] = {
    "3": (DROP, "lost"),
    "4": (HANG, "timeout"),
    "5": ((500, "no"), "server"),
    "6": (response(200, b"NaN"), "protocol"),
}
"""What the server does with a reply that begins with this token, and what becomes of the reply."""


def faulty(asked: Asked) -> Reply:
    first = asked.json["response"][0]
    return OUTCOMES[first][0] if first in OUTCOMES else (200, float(first))


@dataclass
class Watched:
    """A rollout whose samples are kept."""

    rollout: Rollout
    samples: list[Sample] = field(default_factory=list)

    async def __call__(self, task: Task, ticket: Ticket) -> Group | Filtered | Failed:
        outcome = await self.rollout(task, ticket)
        self.samples += outcome.samples if isinstance(outcome, Group | Failed) else outcome.group.samples
        return outcome


def reward_at(url: str) -> LiveReward:
    http = {"attempts": 2, "initial_backoff_seconds": 0.001, "concurrency": 64}
    remote = {"url": url, "api": "slime"}
    # What does not hang must be answered in this time also beside seven others on a busy machine.
    return make_reward(
        build(RewardConfig, {"kind": "remote", "remote": remote, "http": http, "timeout_seconds": scaled(2)})
    )


async def run(reward: LiveReward, learner: FakeLearner) -> tuple[Watched, TicketBuffer]:
    plays = GroupRollout(
        engine=FakeEngine(), renderer=FakeRenderer(), reward=reward, sampling=Sampling(), group_size=GROUP,
        max_context_tokens=64, run_seed=0,
    )  # fmt: skip
    watched = Watched(plays)
    tickets = TicketBuffer(
        groups_per_update=GROUPS, max_staleness=1, updates=UPDATES, refill_groups=0, failure_budget=0.5
    )

    async def boundary(version: PolicyVersion, updated: Updated | None) -> bool:
        return False

    loop = Loop(
        tasks=FakeTasks(), rollout=watched, buffer=tickets, learner=learner, weights=learner,
        max_concurrent_groups=2 * GROUPS,
    )  # fmt: skip
    try:
        await loop.run(UPDATES, boundary)
    finally:
        await reward.close()
    return watched, tickets


async def test_every_fault_has_its_outcome_and_the_accounting_balances() -> None:
    learner = FakeLearner()
    async with scripted(faulty) as server:
        watched, tickets = await run(reward_at(server.url), learner)
    assert len(learner.updates) == UPDATES
    assert tickets.accounts.balanced
    assert tickets.accounts.in_flight == 0
    assert len(watched.samples) == GROUP * tickets.accounts.admitted
    kinds = Counter(sample.score.kind for sample in watched.samples if isinstance(sample.score, Unscored))
    assert set(kinds) == {kind for _, kind in OUTCOMES.values()}
    for sample in watched.samples:
        first = sample.trajectory.response[0]  # type: ignore[union-attr]
        if isinstance(sample.score, Scored):
            assert sample.score.value == float(first)
        else:
            assert sample.score.kind == OUTCOMES[first][1]


async def test_a_server_that_is_gone_ends_the_run_by_name_and_trains_nothing() -> None:
    learner = FakeLearner()
    with pytest.RaisesGroup(pytest.RaisesExc(FailureBudgetSpent, match=r"groups were lost; trainer\.failure_budget")):
        await run(reward_at(nobody()), learner)
    assert learner.updates == []
