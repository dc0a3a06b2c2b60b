"""Episodes come back from their records as they were, and what is no training episode is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf.errors import DataError
from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.episode_records import (
    EndedGroup,
    ended_by_failure,
    ended_by_filter,
    ended_in_evaluation,
    ended_in_flight,
    ended_in_update,
)
from rlhf.runs.recorded_episodes import recorded_groups
from rlhf.types import (
    EpisodeStatus,
    Failed,
    Filtered,
    Group,
    Message,
    Sample,
    Segment,
    Ticket,
    TokenKind,
    ToolCall,
    TrainedSample,
    Trajectory,
    Turn,
    Unscored,
    Updated,
)
from tests.trainer.made import made_groups, made_segment


def with_turns(group: Group) -> Group:
    """The group, its first episode with two segments and a reward of its own in each of two turns."""
    rng = np.random.default_rng(group.ticket.ordinal)
    segments = []
    for number in range(2):
        segment = made_segment(rng, 5, 4)
        segment.kinds[7] = TokenKind.ENV
        blank = segment.kinds != TokenKind.ACTION
        turns = (Turn(start=5, stop=7, reward=0.1 + number, message=1), Turn(start=8, stop=9, terminated=number == 1))
        segments.append(
            replace(
                segment,
                behaviour_logprobs=np.where(blank, 0, segment.behaviour_logprobs).astype(np.float32),
                versions=np.where(blank, -1, number).astype(np.int32),
                turns=turns,
            )
        )
    first = group.samples[0]
    call = ToolCall(id="a", name="add", arguments={"x": [1, None]})
    said = Message(role="user", content="1+?"), Message(role="assistant", content="", tool_calls=(call,))
    said = *said, Message(role="tool", content="2", tool_call_id="a")
    trajectory = replace(first.trajectory, segments=tuple(segments), status=EpisodeStatus.TRUNCATED, conversation=said)
    score = replace(first.score, turn_weight=0.5, only_turns=True)
    return replace(group, samples=(replace(first, trajectory=trajectory, score=score), *group.samples[1:]))


def sound(ordinal: int) -> Group:
    """A group whose versions and log-probs stand only where tokens were sampled, as a rollout leaves them."""
    (group,) = made_groups(1, 3, seed=ordinal)
    samples = []
    for sample in group.samples:
        (segment,) = sample.trajectory.segments
        versions = np.where(segment.action_mask, 2, -1).astype(np.int32)
        samples.append(
            replace(sample, trajectory=replace(sample.trajectory, segments=(replace(segment, versions=versions),)))
        )
    return with_turns(replace(group, ticket=Ticket(ordinal=ordinal, version=2), samples=tuple(samples)))


def updated(group: Group) -> Updated:
    samples = [
        TrainedSample(
            ordinal=group.ticket.ordinal,
            sample=index,
            advantages=np.zeros(trajectory.action_tokens, np.float32),
            proximal_logprobs=np.zeros(trajectory.action_tokens, np.float32),
            entropies=np.zeros(trajectory.action_tokens, np.float32),
        )
        for index, trajectory, _ in group.trainable
    ]
    return Updated(metrics={}, samples=tuple(samples))


def written(folder: Path, records: list[EndedGroup]) -> Path:
    writer = EpisodeParts(folder / "episodes")
    writer.add(*records)
    writer.close()
    return folder / "episodes"


def assert_same_segment(one: Segment, other: Segment) -> None:
    for column in ("token_ids", "kinds", "behaviour_logprobs", "versions"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
        assert getattr(one, column).dtype == getattr(other, column).dtype
    assert one.turns == other.turns


def assert_same(group: Group, other: Group) -> None:
    assert (group.ticket, group.task.id) == (other.ticket, other.task.id)
    assert len(group.trainable) == len(other.trainable) > 0
    for (index, one, score), (place, two, value) in zip(group.trainable, other.trainable, strict=True):
        assert (index, score, one.status, one.response) == (place, value, two.status, two.response)
        assert one.policy == two.policy
        assert one.conversation == two.conversation
        for first, second in zip(one.segments, two.segments, strict=True):
            assert_same_segment(first, second)


def test_a_trained_group_comes_back_bit_for_bit(tmp_path: Path) -> None:
    group = replace(sound(4), baseline=sound(9).samples[1])
    first, *rest = group.samples
    group = replace(group, samples=(replace(first, trajectory=replace(first.trajectory, policy="solver")), *rest))
    (back,) = recorded_groups(written(tmp_path, ended_in_update([group], updated(group), 1)))
    assert_same(back, group)
    assert back.baseline is not None
    assert back.baseline.score == group.baseline.score


def test_groups_come_in_order_of_their_ordinals_and_what_was_lost_stays_lost(tmp_path: Path) -> None:
    broken = Sample(trajectory=Failed(kind="timeout"), score=Unscored(kind="not_played", detail="timeout"))
    unscored = replace(sound(7).samples[0], score=Unscored(kind="crash", detail="it fell"))
    maimed = replace(sound(7), samples=(sound(7).samples[1], broken, unscored))
    failed = Failed(kind="too_few_survivors", samples=(sound(3).samples[0], broken))
    records = [
        *ended_in_update([maimed], updated(maimed), 1),
        ended_by_failure(Ticket(ordinal=3, version=0), sound(3).task, failed, 3),
        ended_by_filter(Filtered(group=sound(2), reason="equal rewards")),
        ended_in_flight(Ticket(ordinal=9, version=1), sound(9).task, 3),
    ]
    groups = recorded_groups(written(tmp_path, records))
    assert [group.ticket.ordinal for group in groups] == [2, 3, 7, 9]
    assert [len(group.samples) for group in groups] == [3, 3, 3, 3]
    assert [len(group.trainable) for group in groups] == [3, 0, 1, 0]
    assert_same(groups[0], sound(2))
    _, timeout, crash = groups[2].samples
    assert timeout.trajectory.kind == "timeout"
    assert isinstance(crash.trajectory, Trajectory)
    assert crash.score == Unscored(kind="crash", detail="it fell")


def without_logprobs() -> list[EndedGroup]:
    group = sound(1)
    first, *rest = group.samples
    unknown = [
        replace(segment, behaviour_logprobs=np.full_like(segment.behaviour_logprobs, np.nan))
        for segment in first.trajectory.segments
    ]
    first = replace(first, trajectory=replace(first.trajectory, segments=tuple(unknown)))
    return ended_in_update([replace(group, samples=(first, *rest))], updated(group), 1)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (ended_in_evaluation([sound(1)], "held_out"), "held out"),
        (ended_in_update([sound(1)], updated(sound(1)), 1) * 2, "sample 0 of group 1 twice"),
        (without_logprobs(), "lacks tokens, or log-probs"),
    ],
    ids=["an evaluation", "the same episode twice", "a sampled token without a log-prob"],
)
def test_records_that_are_no_training_episodes_are_refused(
    tmp_path: Path, records: list[EndedGroup], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        recorded_groups(written(tmp_path, records))


@pytest.mark.parametrize("text", ["", '{"a": 1}\n', "nonsense\n"])
def test_what_are_no_episodes_is_one_named_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "episodes"
    file.write_text(text)
    with pytest.raises(DataError, match=str(file)):
        recorded_groups(file)
