"""Every episode leaves one record, with one outcome, and nothing of it is lost on the way to the file and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlhf.runs.episode_parts import EpisodeParts
from rlhf.runs.episode_records import (
    EndedGroup,
    ended_by_failure,
    ended_by_filter,
    ended_in_evaluation,
    ended_in_flight,
    ended_in_update,
    records_of,
)
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord, as_row, record_of_row
from rlhf.types import (
    EpisodeStatus,
    Failed,
    Filtered,
    Group,
    Message,
    Sample,
    Scored,
    Segment,
    Task,
    Ticket,
    Timings,
    TokenKind,
    ToolCall,
    TrainedSample,
    Trajectory,
    Unscored,
    Updated,
)

TASK = Task(id="sort/7", messages=(Message(role="user", content="231"),), answer="123")
TICKET = Ticket(ordinal=5, version=2)
PROMPT, ACTION, ENV = TokenKind.PROMPT, TokenKind.ACTION, TokenKind.ENV


def segment(kinds: list[TokenKind], first_id: int = 10) -> Segment:
    acted = np.array(kinds) == ACTION
    return Segment(
        token_ids=np.arange(first_id, first_id + len(kinds), dtype=np.int32),
        kinds=np.array(kinds, np.int8),
        behaviour_logprobs=np.where(acted, -0.125, 0).astype(np.float32),
        versions=np.where(acted, 2, -1).astype(np.int32),
    )


def trajectory(*segments: Segment) -> Trajectory:
    return Trajectory(
        task=TASK,
        segments=segments or (segment([PROMPT, ACTION, ACTION]),),
        status=EpisodeStatus.TERMINATED,
        response="123",
        timings=Timings(generate_seconds=0.25),
        engine="engine-1",
    )


def sound(value: float = 1.0) -> Sample:
    return Sample(trajectory=trajectory(), score=Scored(value=value, parts={"exact": value}, detail="all of it"))


UNSCORED = Sample(trajectory=trajectory(), score=Unscored(kind="timeout", detail="no verdict in 10 s"))
BROKEN = Sample(trajectory=Failed(kind="engine", detail="lost"), score=Unscored(kind="failed"))


def group(*samples: Sample) -> Group:
    return Group(ticket=TICKET, task=TASK, samples=samples)


def recorded(*ended: EndedGroup) -> list[EpisodeRecord]:
    return [record for group in ended for record in records_of(group)]


def trained(sample: int, advantages: list[float], logprobs: list[float]) -> TrainedSample:
    columns = {
        "advantages": advantages,
        "proximal_logprobs": logprobs,
        "entropies": [-2 * logprob for logprob in logprobs],
    }
    arrays = {name: np.array(values, np.float32) for name, values in columns.items()}
    return TrainedSample(ordinal=5, sample=sample, **arrays)


def test_a_trained_episode_tells_all_of_its_story():
    updated = Updated(metrics={}, samples=(trained(0, [0.5, 0.5], [-0.25, -0.5]),))
    (record,) = recorded(*ended_in_update([group(sound())], updated, update=3))
    assert (record.ordinal, record.sample, record.task, record.outcome) == (5, 0, "sort/7", EpisodeOutcome.TRAINED)
    assert (record.admitted_version, record.update) == (2, 3)
    assert record.prompt == [{"role": "user", "content": "231"}]
    assert (record.answer, record.response, record.status) == ("123", "123", "terminated")
    assert (record.reward, record.reward_parts, record.reward_detail) == (1.0, {"exact": 1.0}, "all of it")
    assert (record.advantage, record.advantages) == (0.5, None)
    row = as_row(record)
    assert row["token_ids"] == [10, 11, 12]
    assert row["kinds"] == [0, 1, 1]
    assert row["behaviour_logprobs"] == [None, -0.125, -0.125]
    assert row["proximal_logprobs"] == [None, -0.25, -0.5]
    assert row["entropies"] == [None, 0.5, 1.0]
    assert row["versions"] == [None, 2, 2]
    assert (record.engine, record.generate_seconds) == ("engine-1", 0.25)


def test_advantages_that_differ_within_an_episode_are_kept_token_by_token():
    updated = Updated(metrics={}, samples=(trained(0, [1.0, 0.0], [0, 0]),))
    (record,) = recorded(*ended_in_update([group(sound())], updated, update=3))
    assert record.advantage == 0.5
    assert as_row(record)["advantages"] == [None, 1.0, 0.0]


def test_segments_follow_one_another_and_their_lengths_say_where_one_ends():
    two = Sample(
        trajectory=trajectory(segment([PROMPT, ACTION]), segment([PROMPT, ENV, ACTION, ACTION], first_id=50)),
        score=Scored(value=0.0),
    )
    updated = Updated(metrics={}, samples=(trained(0, [0, 0, 0], [-1, -2, -3]),))
    (record,) = recorded(*ended_in_update([group(two)], updated, update=3))
    assert record.segment_lengths == [2, 4]
    assert record.token_ids.tolist() == [10, 11, 50, 51, 52, 53]
    assert as_row(record)["proximal_logprobs"] == [None, -1, None, None, -2, -3]


def test_a_sample_whose_scorer_or_engine_broke_has_its_own_fate_within_a_trained_group():
    updated = Updated(metrics={}, samples=(trained(1, [0, 0], [0, 0]),))
    unscored, kept, failed = recorded(*ended_in_update([group(UNSCORED, sound(), BROKEN)], updated, update=3))
    assert (unscored.outcome, unscored.failure_kind, unscored.reward) == (EpisodeOutcome.UNSCORED, "timeout", None)
    assert unscored.token_ids.tolist() == [10, 11, 12], "what was sampled is kept for whoever mends the scorer"
    assert kept.outcome == EpisodeOutcome.TRAINED
    assert (failed.outcome, failed.failure_kind, failed.failure_detail) == (EpisodeOutcome.FAILED, "engine", "lost")
    assert (failed.token_ids, failed.reward, failed.update) == (None, None, None)


def test_a_filtered_group_names_why_and_keeps_its_rewards():
    records = recorded(ended_by_filter(Filtered(group=group(sound(), UNSCORED), reason="equal_rewards")))
    assert [record.outcome for record in records] == [EpisodeOutcome.FILTERED, EpisodeOutcome.UNSCORED]
    assert (records[0].failure_kind, records[0].reward) == ("equal_rewards", 1.0)


def test_a_failed_group_leaves_a_record_for_every_episode_it_was_to_have():
    failed = Failed(kind="engine", detail="engine-0 died", samples=(sound(), BROKEN))
    records = recorded(ended_by_failure(TICKET, TASK, failed, size=4))
    assert [record.sample for record in records] == [0, 1, 2, 3]
    assert {record.outcome for record in records} == {EpisodeOutcome.FAILED}
    assert records[0].response == "123"
    assert [record.failure_detail for record in records] == ["engine-0 died", "lost", "engine-0 died", "engine-0 died"]


def test_what_the_end_of_the_run_found_unfinished_is_in_flight():
    records = recorded(ended_in_flight(TICKET, TASK, size=3, group=group(sound())))
    assert [record.outcome for record in records] == [EpisodeOutcome.IN_FLIGHT] * 3
    assert [record.reward for record in records] == [1.0, None, None]


def test_an_evaluated_episode_names_its_set_and_is_not_in_the_books(tmp_path: Path):
    records = recorded(*ended_in_evaluation([group(sound(), UNSCORED)], "hard"))
    assert [(record.outcome, record.evaluation_set) for record in records] == [
        (EpisodeOutcome.EVALUATED, "hard"),
        (EpisodeOutcome.UNSCORED, "hard"),
    ]
    writer = EpisodeParts(tmp_path / "episodes")
    writer.add(*ended_in_evaluation([group(sound())], "hard"))
    assert writer.counts["admitted"] == 0


def test_a_baseline_is_recorded_beside_its_group_and_is_not_in_the_books(tmp_path: Path):
    played = Group(ticket=TICKET, task=TASK, samples=(sound(), UNSCORED), baseline=sound(0.25))
    updated = Updated(metrics={}, samples=(trained(0, [0, 0], [0, 0]),))
    writer = EpisodeParts(tmp_path / "episodes")
    for ended in (
        *ended_in_update([played], updated, update=3),
        ended_by_filter(Filtered(group=played, reason="equal rewards")),
        ended_in_flight(TICKET, TASK, size=2, group=played),
    ):
        records = recorded(ended)
        assert (records[-1].outcome, records[-1].sample, records[-1].reward) == (EpisodeOutcome.BASELINE, 2, 0.25)
        assert records[-1].response == "123"
        writer.add(ended)
    assert writer.counts == {
        "admitted": 6, "trained": 1, "filtered": 1, "failed": 0, "unscored": 3, "in_flight": 1,
    }  # fmt: skip


def test_every_float32_survives_the_text():
    random = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    values = random[np.isfinite(random)]
    (record,) = recorded(ended_in_flight(TICKET, TASK, 1, group(sound())))
    back = record_of_row(json.loads(json.dumps(as_row(replace(record, behaviour_logprobs=values)))))
    assert (back.behaviour_logprobs == values).all()
    odd = replace(record, behaviour_logprobs=np.array([np.nan, np.inf, -np.inf, 1], np.float32))
    assert as_row(odd)["behaviour_logprobs"] == [None, None, None, 1.0]


def test_outcomes_go_on_from_those_that_were_written(tmp_path: Path):
    writer = EpisodeParts(tmp_path / "episodes", {"trained": 5, "failed": 2, "evaluated": 9})
    failed = ended_by_failure(TICKET, TASK, Failed(kind="engine"), size=1)
    writer.add(replace(failed, outcome=EpisodeOutcome.TRAINED), replace(failed, outcome=EpisodeOutcome.UNSCORED))
    assert writer.outcomes == {"trained": 6, "failed": 2, "evaluated": 9, "unscored": 1}
    assert writer.counts == {
        "admitted": 9, "trained": 6, "filtered": 0, "failed": 2, "unscored": 1, "in_flight": 0,
    }  # fmt: skip
    writer.close()


def test_an_episode_with_an_environment_is_recorded_with_all_that_was_said() -> None:
    call = ToolCall(id="c", name="add", arguments={"x": 1})
    said = (
        Message(role="user", content="1+1?"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="2", tool_call_id="c"),
    )
    played = replace(trajectory(segment([PROMPT, ACTION, ENV, ACTION])), conversation=said, malformed_calls=2)
    group = Group(
        ticket=TICKET,
        task=TASK,
        samples=(Sample(trajectory=played, score=Scored(value=1.0, turn_weight=1.0, only_turns=True)),),
    )
    [record] = recorded(*ended_in_evaluation([group], "held_out"))
    assert record.conversation == [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "add", "arguments": {"x": 1}}]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    assert (record.malformed_calls, record.reward_per_turn) == (2, True)
