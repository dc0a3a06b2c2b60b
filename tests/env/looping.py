"""A whole run without weights: the real loop, buffer, books and episodes, an engine and a learner that cost nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlhf.cluster.watch import telling_error
from rlhf.controller.episode_log import EpisodeLog
from rlhf.protocols import Environments
from rlhf.reward.reward import EnvironmentReward
from rlhf.rollout.group import GroupRollout
from rlhf.rollout.turns import TurnRules, WithEnvironment
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.trainer.buffer import Accounts, TicketBuffer
from rlhf.trainer.credit.statistics import batch_statistics, trained_statistics
from rlhf.trainer.loop import Loop
from rlhf.types import Group, PolicyVersion, Sampling, TrainedSample, Updated
from tests.fakes import FakeEngine, FakeLearner, FakeRenderer, FakeTasks

GROUP, GROUPS = 4, 8


@dataclass(frozen=True)
class Books:
    """The records of a run. `ended` is the error that ended it early."""

    ended: BaseException | None
    updates: int
    groups: Accounts
    samples: dict[str, int]
    records: list[EpisodeRecord]

    @property
    def failures(self) -> Counter[str | None]:
        """The failed episodes, by kind."""
        return Counter(record.failure_kind for record in self.records if record.outcome is EpisodeOutcome.FAILED)

    def check(self, updates: int, reward: float) -> None:
        """Check that the run reached its end, the accounting balances, and no failure became a number."""
        assert self.ended is None
        assert self.updates == updates
        self.check_balance()
        assert self.groups.trained == updates * GROUPS
        assert self.groups.in_flight == self.samples["in_flight"] == 0
        self.check_numbers(reward)

    def check_balance(self) -> None:
        """Every group and every sample has one outcome, and every sample one record."""
        assert self.groups.balanced
        outcomes = {name: count for name, count in self.samples.items() if name != "admitted"}
        assert self.samples["admitted"] == sum(outcomes.values()) == GROUP * self.groups.admitted == len(self.records)

    def check_numbers(self, reward: float) -> None:
        for record in self.records:
            if record.outcome is EpisodeOutcome.TRAINED:
                assert record.reward == reward
                assert [turn["reward"] for turn in record.turns or []] == [1.0, 2.0, 3.0]
            elif record.outcome is EpisodeOutcome.FAILED and record.failure_kind != "too_few_survivors":
                assert record.reward is None


class WholeLearner(FakeLearner):
    """Says that it trained every sample that has a number."""

    async def update(self, groups: Sequence[Group]) -> Updated:
        metrics = batch_statistics(groups, version=self.version)
        await super().update(groups)
        samples = tuple(_trained(group, one) for group in groups for one in group.trainable)
        metrics |= trained_statistics(groups, {(one.ordinal, one.sample) for one in samples})
        return Updated(metrics=metrics, samples=samples)


def _trained(group: Group, one: tuple[int, object, object]) -> TrainedSample:
    tokens = np.zeros(group.trainable[0][1].action_tokens, np.float32)
    return TrainedSample(
        ordinal=group.ticket.ordinal, sample=one[0], advantages=tokens, proximal_logprobs=tokens, entropies=tokens
    )


async def run_to_the_end(environments: Environments, folder: Path, updates: int, *, turns: int = 3) -> Books:
    """Run `updates` updates of `GROUPS` groups, one update stale."""
    place, buffer, learner = RunFolder.create(folder), _buffer(updates), WholeLearner()
    log = EpisodeLog(place, GROUP)
    rules = TurnRules(environment=environments.spec.name, max_turns=turns, timeout_seconds=30)
    rollout = GroupRollout(
        engine=FakeEngine(), renderer=FakeRenderer(), reward=EnvironmentReward(), sampling=Sampling(), group_size=GROUP,
        max_context_tokens=64, run_seed=0, play=WithEnvironment(environments=environments, rules=rules),
    )  # fmt: skip

    async def boundary(version: PolicyVersion, updated: Updated | None) -> bool:
        return False

    loop = Loop(
        tasks=FakeTasks(), rollout=rollout, buffer=buffer, learner=learner, weights=learner,
        max_concurrent_groups=2 * GROUPS, log=log,
    )  # fmt: skip
    ended = None
    try:
        await loop.run(updates, boundary)
    except ExceptionGroup as error:
        ended = telling_error(error)
    log.close()
    place.give_back()
    records = list(read_episodes(place.episodes))
    return Books(ended, len(learner.updates), buffer.accounts, log.sample_counts, records)


def _buffer(updates: int) -> TicketBuffer:
    return TicketBuffer(groups_per_update=GROUPS, max_staleness=1, updates=updates, refill_groups=0, failure_budget=0.5)
