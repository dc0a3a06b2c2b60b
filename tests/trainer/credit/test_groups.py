"""Played groups become advantages; the estimate of one group against a brute-force reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlhf.trainer.credit.estimators import group_relative
from rlhf.trainer.credit.rewards import shuffled_rewards
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Task, Ticket, Trajectory, Turn, Unscored
from tests.trainer.credit.made import scored
from tests.trainer.made import made_batch, made_groups, without_score

rewards = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=16)


@given(rewards)
def test_group_relative_agrees_with_a_plain_float64_evaluation(values: list[float]) -> None:
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    expected = [0.0 if len(set(values)) == 1 else (v - mean) / (std + 1e-6) for v in values]
    found = group_relative(scored(values), normalize_by_std=True)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_without_std_the_advantage_is_the_distance_from_the_mean() -> None:
    found = group_relative(scored([1, 0, 0, 0]), normalize_by_std=False)
    assert found.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_samples_without_a_score_have_no_part_in_the_statistics() -> None:
    (group,) = made_groups(1, 4)
    whole, broken = made_batch([group]), without_score(without_score(group, 1), 2)
    values = [score.value for _, _, score in broken.trainable]
    batch = made_batch([broken])
    found = [float(advantages[0]) for advantages in batch.per_sample(batch.advantages)]
    expected = group_relative(scored(values), normalize_by_std=True)
    assert found == expected.astype(np.float32).tolist()
    assert len(whole.samples) == 4
    assert len(found) == 2


def test_shuffled_rewards_keep_every_reward_and_move_them_between_groups() -> None:
    task = Task(id="t", messages=())
    played = Trajectory(task=task, segments=(), status=EpisodeStatus.TERMINATED)

    def group(ordinal: int, rewards: list[float]) -> Group:
        samples = [Sample(trajectory=played, score=Scored(value=value)) for value in rewards]
        lost = Sample(trajectory=played, score=Unscored(kind="timeout"))
        return Group(ticket=Ticket(ordinal=ordinal, version=0), task=task, samples=(lost, *samples))

    groups = [group(0, [1.0, 2.0, 3.0]), group(1, [4.0, 5.0, 6.0])]
    shuffled = shuffled_rewards(groups, seed=1)
    values = [[score.value for _, _, score in group.trainable] for group in shuffled]
    assert sorted(values[0] + values[1]) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert sorted(values[0]) != [1.0, 2.0, 3.0]
    assert all(isinstance(group.samples[0].score, Unscored) for group in shuffled)
    again = shuffled_rewards(groups, seed=1)
    assert [[score.value for _, _, score in group.trainable] for group in again] == values
    solved = [Sample(trajectory=replace(played, policy="solver"), score=Scored(value=value)) for value in (7.0, 8.0)]
    (own,) = shuffled_rewards([replace(groups[0], policy="solver", samples=(*groups[0].samples, *solved))], seed=1)
    assert sorted(score.value for _, _, score in own.trainable) == [7.0, 8.0], "another policy's stay where they are"


def test_rewards_that_turns_were_paid_are_shuffled_with_the_whole_and_paid_no_more() -> None:
    (group,) = made_groups(1, 4)
    paid = [
        replace(
            sample,
            trajectory=replace(
                sample.trajectory,
                segments=tuple(
                    replace(segment, turns=(Turn(start=0, stop=1, reward=sample.score.value),))
                    for segment in sample.trajectory.segments
                ),
            ),
            score=Scored(value=sample.score.value, turn_weight=1.0, only_turns=True),
        )
        for sample in group.samples
    ]
    (shuffled,) = shuffled_rewards([replace(group, samples=tuple(paid))], seed=1)
    assert sorted(s.value for _, _, s in shuffled.trainable) == sorted(sample.score.value for sample in paid)
    assert {(score.turn_weight, score.only_turns) for _, _, score in shuffled.trainable} == {(0.0, False)}
