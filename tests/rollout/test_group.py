"""Groups: what was sampled is kept as it was, and what breaks in one sample is data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf.errors import DeadlinePassed, GenerateFailed
from rlhf.rollout.group import GroupRollout
from rlhf.trainer.credit.statistics import batch_statistics
from rlhf.types import (
    Completion,
    EpisodeStatus,
    Failed,
    Filtered,
    FinishReason,
    Group,
    Prompt,
    Sampling,
    Ticket,
    TokenKind,
    Trajectory,
)
from tests.fakes import TASK, FakeEngine, FakeRenderer, FakeReward

TICKET = Ticket(ordinal=5, version=3)


def rollout(engine: FakeEngine, reward: FakeReward, *, size: int = 3, **changes: object) -> GroupRollout:
    settings = {"sampling": Sampling(max_tokens=4), "max_context_tokens": 32, "run_seed": 1} | changes
    return GroupRollout(engine=engine, renderer=FakeRenderer(), reward=reward, group_size=size, **settings)


async def test_a_trajectory_holds_prompt_and_reply_token_by_token() -> None:
    group = await rollout(FakeEngine(), FakeReward(1.0, 0.0, 0.5))(TASK, TICKET)
    assert isinstance(group, Group)
    trajectory = group.samples[0].trajectory
    assert isinstance(trajectory, Trajectory)
    [segment] = trajectory.segments
    assert segment.token_ids[:3].tolist() == [7, 8, 9]
    assert segment.kinds.tolist() == [TokenKind.PROMPT] * 3 + [TokenKind.ACTION] * 2
    assert segment.behaviour_logprobs.tolist() == [0, 0, 0, -0.5, -0.5]
    assert segment.versions.tolist() == [-1, -1, -1, 0, 0]
    assert (segment.turns[0].start, segment.turns[0].stop, segment.turns[0].terminated) == (3, 5, True)
    assert trajectory.status is EpisodeStatus.TERMINATED
    assert trajectory.engine == "fake"


async def test_the_samples_of_a_group_have_seeds_of_their_own_that_a_replay_has_again() -> None:
    first, again, other = FakeEngine(), FakeEngine(), FakeEngine()
    await rollout(first, FakeReward(0, 1, 2))(TASK, TICKET)
    await rollout(again, FakeReward(0, 1, 2))(TASK, TICKET)
    await rollout(other, FakeReward(0, 1, 2), run_seed=2)(TASK, TICKET)
    await rollout(other, FakeReward(0, 1, 2))(TASK, replace(TICKET, ordinal=TICKET.ordinal + 1))
    seeds = [seed for _, _, seed in first.asked]
    assert len(set(seeds)) == 3
    assert seeds == [seed for _, _, seed in again.asked]
    assert not set(seeds) & {seed for _, _, seed in other.asked}


async def test_rewards_that_differ_by_their_rounding_are_equal() -> None:
    group = await rollout(FakeEngine(), FakeReward(1.0, sum([0.1] * 10), 1.0), filter_equal_rewards=True)(TASK, TICKET)
    assert isinstance(group, Filtered)


async def test_a_reply_that_fills_its_budget_is_truncated_not_terminated() -> None:
    group = await rollout(FakeEngine(), FakeReward(0, 1, 0), sampling=Sampling(max_tokens=1))(TASK, TICKET)
    assert isinstance(group, Group)
    assert {sample.trajectory.status for sample in group.samples} == {EpisodeStatus.TRUNCATED}


async def test_a_reply_that_passes_its_time_is_trained_with_what_it_had_said() -> None:
    class OutOfTime(FakeEngine):
        async def generate(self, prompt: Prompt, **how: Any) -> Completion:
            return replace(await super().generate(prompt, **how), finish_reason=FinishReason.TIME)

    group = await rollout(OutOfTime(), FakeReward(0, 1, 0))(TASK, TICKET)
    assert isinstance(group, Group)
    assert [(t.status, t.out_of_time, t.action_tokens) for _, t, _ in group.trainable] == [
        (EpisodeStatus.TRUNCATED, True, 2)
    ] * 3
    assert batch_statistics([group], version=0)["response/out_of_time"] == 1.0


async def test_a_prompt_that_fills_the_context_is_failed_with_its_task() -> None:
    outcome = await rollout(FakeEngine(), FakeReward(), max_context_tokens=3)(TASK, TICKET)
    assert isinstance(outcome, Failed)
    assert outcome.kind == "too_few_survivors"
    assert "prompt_too_long x3" in outcome.detail


@pytest.mark.parametrize(
    ("error", "kind"), [(DeadlinePassed("engine-0", 3), "timeout"), (GenerateFailed("engine-0", "s", "why"), "engine")]
)
async def test_an_episode_that_breaks_is_failed_and_its_siblings_are_scored(error: Exception, kind: str) -> None:
    def fail(session: str) -> None:
        if session.endswith("-1"):
            raise error

    group = await rollout(FakeEngine(fail), FakeReward(1.0, 0.0))(TASK, TICKET)
    assert isinstance(group, Group)
    assert [index for index, _, _ in group.trainable] == [0, 2]
    assert isinstance(group.samples[1].trajectory, Failed)
    assert group.samples[1].trajectory.kind == kind


async def test_a_group_with_one_survivor_is_failed_with_what_became_of_the_others() -> None:
    outcome = await rollout(FakeEngine(), FakeReward(None, 1.0, None))(TASK, TICKET)
    assert isinstance(outcome, Failed)
    assert outcome.detail == "2 of 3 lost: raised x2; raised"
    assert len(outcome.samples) == 3, "for the records"


async def test_equal_rewards_are_filtered_only_when_the_recipe_says_so() -> None:
    kept = await rollout(FakeEngine(), FakeReward(1, 1, 1))(TASK, TICKET)
    filtered = await rollout(FakeEngine(), FakeReward(1, 1, 1), filter_equal_rewards=True)(TASK, TICKET)
    assert isinstance(kept, Group)
    assert isinstance(filtered, Filtered)


async def test_a_greedy_baseline_is_played_beside_the_group_and_scored_with_it() -> None:
    engine, reward = FakeEngine(), FakeReward(1.0, 0.0, 0.5, 0.25)
    group = await rollout(engine, reward, greedy_baseline=True)(TASK, TICKET)
    assert isinstance(group, Group)
    assert [sample.score.value for sample in group.samples] == [1.0, 0.0, 0.5]
    assert group.baseline is not None
    assert group.baseline.score.value == 0.25
    assert [index for index, _, _ in group.trainable] == [0, 1, 2], "it is none of the samples"
    assert [(sampling.temperature, sampling.max_tokens) for _, sampling, _ in engine.asked] == [(1.0, 4)] * 3 + [(0, 4)]
    assert len({seed for _, _, seed in engine.asked}) == 4


async def test_a_group_whose_baseline_has_no_number_is_failed() -> None:
    outcome = await rollout(FakeEngine(), FakeReward(1.0, 0.0, 0.5, None), greedy_baseline=True)(TASK, TICKET)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.detail) == ("no_baseline", "lost the greedy episode: raised")
    assert len(outcome.samples) == 3


async def test_a_group_whose_baseline_broke_is_failed() -> None:
    def fail(session: str) -> None:
        if session.endswith("-3"):
            raise DeadlinePassed("engine-0", 3)

    outcome = await rollout(FakeEngine(fail), FakeReward(1.0, 0.0, 0.5), greedy_baseline=True)(TASK, TICKET)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.detail) == ("no_baseline", "lost the greedy episode: timeout")


@pytest.mark.parametrize("baseline", [0.0, 1.0])
async def test_equal_rewards_are_those_of_the_samples_whatever_the_baselines(baseline: float) -> None:
    reward = FakeReward(1, 1, 1, baseline)
    outcome = await rollout(FakeEngine(), reward, greedy_baseline=True, filter_equal_rewards=True)(TASK, TICKET)
    assert isinstance(outcome, Filtered)
    other = FakeReward(1, 0, 1, baseline)
    kept = await rollout(FakeEngine(), other, greedy_baseline=True, filter_equal_rewards=True)(TASK, TICKET)
    assert isinstance(kept, Group)
