"""What a recording holds for an offline recipe, and the books of what was learnt from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf.apps.cli.serve_policy import trajectory_writer
from rlhf.controller.offline import OfflineTrainer
from rlhf.data.order import TaskOrder
from rlhf.errors import DataError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.episode_records import ended_in_flight
from rlhf.trainer.offline import Recording, check_fit, read_recording
from rlhf.types import Group, Scored, TrainedSample, Updated
from tests.trainer.made import made_groups, without_score


def recipe(**trainer: Any) -> Recipe:
    values = {"kind": "offline", "model": {"tiny": {}}, "data": {"episodes": "runs/a"}, "trainer": trainer}
    return recipe_from(values).recipe


def with_rewards(group: Group, *rewards: float) -> Group:
    samples = [
        replace(sample, score=Scored(value=reward)) for sample, reward in zip(group.samples, rewards, strict=True)
    ]
    return replace(group, samples=tuple(samples))


SOUND, EQUAL, LONELY, SILENT = (
    with_rewards(group, *rewards)
    for group, rewards in zip(made_groups(4, 3), [(0, 1, 1), (1, 1, 1), (0, 1, 0), (0, 1, 0)], strict=True)
)
LONELY = without_score(without_score(LONELY, 0), 1)
SILENT = without_score(without_score(without_score(SILENT, 0), 1), 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Four groups: sound, with equal rewards, with one survivor, with none."""
    writer = EpisodeParts(tmp_path / "episodes")
    for group in (SOUND, EQUAL, LONELY, SILENT):
        writer.add(ended_in_flight(group.ticket, group.task, 3, group))
    writer.close()
    return tmp_path / "episodes"


def ordinals(groups: Sequence[Group]) -> list[int]:
    return [group.ticket.ordinal for group in groups]


def test_a_group_needs_two_survivors_as_in_the_run_that_played_it(file: Path) -> None:
    recording = read_recording(recipe().trainer, file)
    assert ordinals(recording.sound) == [0, 1]
    assert ordinals(recording.failed) == [2, 3]
    assert recording.describe() == "2 recorded groups to learn from, 2 failed"


def test_sessions_without_a_reward_are_left_out_and_lone_ones_compared_with_their_neighbours(tmp_path: Path) -> None:
    played = [one.trainable[0][1] for one in made_groups(8, 1)]
    rewards = (None, 0, 1, 1, 0, 1, None, 0)
    file = tmp_path / "served.jsonl"
    with trajectory_writer(file, 3) as keep:
        for number, (trajectory, reward) in enumerate(zip(played, rewards, strict=True)):
            keep(trajectory, reward, "g" if number in (1, 2, 6) else None)
    recording = read_recording(recipe(group_size=2).trainer, file)
    assert [[score.value for _, _, score in group.trainable] for group in recording.sound] == [[0, 1], [1, 0], [1, 0]]
    assert recording.describe().startswith(
        "3 recorded groups to learn from, 2 sessions without a reward left out; 4 episodes have no other of their "
        "group, so their baseline is the mean reward of about 2 recorded one after another: advantage.estimator group"
    )
    assert all((part.versions[part.action_mask] == 3).all() for part in recording.sound[0].trainable[0][1].segments)
    critic = read_recording(recipe(advantage={"estimator": "gae"}, critic={}, algorithm="ppo").trainer, file)
    assert len(critic.sound) == 5
    assert critic.baseline == "4 episodes have no other of their group: their baseline is the critic's value " + (
        "(advantage.estimator gae)"
    )


def test_a_recording_of_constrained_replies_alone_is_refused(tmp_path: Path) -> None:
    group = made_groups(1, 2)[0]
    file = tmp_path / "served.jsonl"
    with trajectory_writer(file, 0) as keep:
        for number, (_, trajectory, _) in enumerate(group.trainable):
            parts = [replace(part, kinds=np.minimum(part.kinds, 0), turns=()) for part in trajectory.segments]
            keep(replace(trajectory, segments=tuple(parts)), number, "g")
    with pytest.raises(DataError, match="a grammar constrained every reply"):
        read_recording(recipe().trainer, file)


def test_groups_with_equal_rewards_are_left_out_where_the_recipe_filters_them(file: Path) -> None:
    recording = read_recording(recipe(filter={"equal_rewards": True}).trainer, file)
    assert (ordinals(recording.sound), ordinals(recording.filtered)) == ([0], [1])


def test_remax_needs_the_greedy_episodes(file: Path) -> None:
    remax = recipe(advantage={"estimator": "remax"}, loss={"policy": "ppo"})
    with pytest.raises(DataError, match="compares with a greedy episode"):
        read_recording(remax.trainer, file)


def test_episodes_of_another_model_are_refused() -> None:
    recording = Recording(sound=(SOUND,), filtered=(), failed=())
    longest = max(len(s.token_ids) for _, t, _ in SOUND.trainable for s in t.segments)
    check_fit(recording, Path("a"), vocab_size=260, context_tokens=longest)
    with pytest.raises(DataError, match=f"an episode of {longest} tokens"):
        check_fit(recording, Path("a"), vocab_size=260, context_tokens=longest - 1)
    with pytest.raises(DataError, match="the model knows 100 tokens"):
        check_fit(recording, Path("a"), vocab_size=100, context_tokens=longest)


class CountingLearner:
    """Trains nothing, and knows the groups it was given."""

    def __init__(self) -> None:
        self.version = 0
        self.seen: list[list[int]] = []

    async def update(self, groups: Sequence[Group]) -> Updated:
        self.version += 1
        self.seen.append(ordinals(groups))
        nothing = np.zeros(1, np.float32)
        return Updated(
            metrics={"policy/approx_kl": 0.5, "tokens/trained": 5.0},
            samples=tuple(
                TrainedSample(
                    ordinal=group.ticket.ordinal,
                    sample=index,
                    advantages=nothing,
                    proximal_logprobs=nothing,
                    entropies=nothing,
                )
                for group in groups
                for index, _, _ in group.trainable
            ),
        )


async def test_its_books_count_every_recorded_group_and_episode_once() -> None:
    maimed = without_score(with_rewards(made_groups(1, 3, seed=5)[0], 0, 1, 0), 2)
    sound = (maimed, *(replace(SOUND, ticket=replace(SOUND.ticket, ordinal=n)) for n in range(1, 5)))
    recording = Recording(sound=sound, filtered=(EQUAL,), failed=(SILENT,))
    learner = CountingLearner()
    replay = OfflineTrainer(learner, recording, TaskOrder(sound, seed=0, shuffle=False), batch_size=2)  # type: ignore[arg-type]
    lesson = await replay.update()
    assert lesson.metrics["policy/approx_kl"] == 0.5
    assert "staleness/mean" not in lesson.metrics
    assert replay.counts.samples == 5
    assert replay.counts.groups == {"admitted": 7, "trained": 2, "filtered": 1, "failed": 1, "in_flight": 3}
    assert replay.counts.episodes == {
        "admitted": 21, "trained": 5, "filtered": 3, "failed": 0, "in_flight": 9, "unscored": 4,
    }  # fmt: skip
    for _ in range(3):
        await replay.update()
    assert learner.seen == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert replay.counts.groups["trained"] == 5
    assert replay.counts.episodes["trained"] == 14
