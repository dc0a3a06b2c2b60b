"""What a run tells in words: losses once for every kind and place, replies now and then, rewards without a signal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf.controller.rl import batch_notices
from rlhf.controller.user_messages import (
    EQUAL_UPDATES,
    MOST_TOLD,
    AlarmNotices,
    LossNotices,
    OpeningNotices,
    ReplyNotices,
    SampleEpisodes,
    SignalNotices,
    shown_reply,
)
from rlhf.errors import FailureBudgetSpent
from rlhf.recipe.loading import recipe_from
from rlhf.types import Failed, Message, Sample, Scored, Task, Unscored
from tests.small_tasks import sorting
from tests.trainer.made import made_groups


def test_every_kind_and_place_is_told_once() -> None:
    told: list[str] = []
    notices = LossNotices(told.append, Path("runs/r/logs"))
    (whole,) = made_groups(1, 8)
    scores = [
        Unscored(kind="raised", detail="KeyError: 'a' (at my_reward.py:2)"),
        Unscored(kind="raised", detail="KeyError: 'b' (at my_reward.py:2)"),
        Unscored(kind="raised", detail="KeyError: 'b' (at my_reward.py:3)"),
        Unscored(kind="timeout", detail="it was killed after 5 s"),
        Scored(value=0.0, failure="died", detail="exit code 3"),
        Scored(value=1.0),
    ]
    samples = tuple(replace(sample, score=score) for sample, score in zip(whole.samples, scores, strict=False))
    for _ in range(2):
        notices.notice(replace(whole, samples=samples))
    more = "; more of this kind are only counted"
    assert told == [
        f"a sample was lost: raised: KeyError: 'a' (at my_reward.py:2) (traceback in runs/r/logs){more}",
        f"a sample was lost: raised: KeyError: 'b' (at my_reward.py:3) (traceback in runs/r/logs){more}",
        f"a sample was lost: timeout: it was killed after 5 s{more}",
        f"a scorer failed, and the reply got 0: died: exit code 3{more}",
    ]


def test_the_lowest_and_the_highest_rewards_of_an_update_are_rows_of_a_table() -> None:
    (group,) = made_groups(1, 2)
    sample = group.samples[0]
    trajectory = replace(sample.trajectory, response="\x1b[2J\ud800" + "x" * 5000)
    samples = tuple(replace(sample, trajectory=trajectory, score=Scored(value=float(n))) for n in range(20))
    kept = SampleEpisodes()
    kept.notice(1, [replace(group, samples=samples)], {})
    assert [row.reward for row in kept.rows] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert kept.rows[0].reply.startswith("\\x1b[2J\\ud800xxx")
    assert len(kept.rows[0].reply) < 2020
    kept.notice(2, [replace(group, samples=samples[:1])], {})
    assert [row.reward for row in kept.rows] == [0]


def test_reasons_without_end_do_not_flood_the_terminal() -> None:
    told: list[str] = []
    notices = LossNotices(told.append, Path("logs"))
    for number in range(100):
        lost = Sample(trajectory=Failed(kind=f"kind {number}"), score=Unscored(kind="not_played"))
        notices.notice(Failed(kind="too_few_survivors", samples=(lost,)))
    assert len(told) == MOST_TOLD


def test_replies_are_shown_after_the_first_update_and_then_at_widening_distances() -> None:
    told: list[str] = []
    notices = ReplyNotices(told.append)
    for version in range(1, 20):
        notices.notice(version, made_groups(2, 2), {})
    assert [words.partition(",")[0] for words in told] == [f"a reply of update {n}" for n in (1, 2, 4, 8, 16)]


def test_a_shown_reply_is_short_has_no_control_characters_and_comes_with_its_question_and_reward() -> None:
    (group,) = made_groups(1, 2)
    _, trajectory, _ = group.trainable[0]
    asked = Message(role="user", content="What is\n6 x 7?")
    task = Task(id="t", messages=(Message(role="system", content="Think."), asked))
    plain = replace(trajectory, task=task, conversation=(), response="\x1b[2J4" + "2" * 10_000)
    first, question, reply = shown_reply(4, plain, Scored(value=0.25)).splitlines()
    assert (first, question) == ("a reply of update 4, reward 0.250", "  question  What is 6 x 7?")
    assert reply.startswith("  reply     \\x1b[2J42222")
    assert len(reply) < 500
    played = replace(
        plain,
        response="the last",
        conversation=(
            asked, Message(role="assistant", content="a first"), Message(role="user", content="Wrong, again."),
            Message(role="assistant", content="the last"), Message(role="user", content="Right."),
        ),
    )  # fmt: skip
    assert shown_reply(1, played, Scored(value=1.0)).splitlines()[1:] == [
        "  begins    What is 6 x 7?", "  question  Wrong, again.", "  reply     the last",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("siblings", "std", "equal", "told"),
    [
        (True, 0.0, 1.0, "every reward was 0.5"),
        (False, 5e-17, 0.0, "every reward was 0.5"),
        (True, 0.3, 1.0, "rewards were equal in all groups"),
        (True, 0.3, 0.9, ""),
        (False, 0.3, 1.0, ""),
        (False, 0.0, 1.0, "every reward was 0.5"),
    ],
)
def test_rewards_without_a_signal_in_several_updates_in_a_row_are_told_once(
    siblings: bool, std: float, equal: float, told: str
) -> None:
    words: list[str] = []
    notices = SignalNotices(words.append, siblings=siblings)
    silent = {"reward/mean": 0.5, "reward/std": std, "reward/equal_groups": equal}
    learns = {"reward/mean": 0.5, "reward/std": 0.5, "reward/equal_groups": 0.0}
    for statistics in (*[silent] * (EQUAL_UPDATES - 1), learns, *[silent] * 10):
        notices.notice(1, (), statistics)
    assert len(words) == bool(told)
    assert told in "".join(words)


def test_replies_are_not_shown_where_the_recipe_says_so_and_a_recipe_without_a_reward_has_no_signal() -> None:
    def kinds(**given: Any) -> list[type]:
        recipe = recipe_from(
            {"model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}, **given}
        )
        return [type(one) for one in batch_notices(recipe.recipe, print)]

    assert kinds() == [OpeningNotices, ReplyNotices, SignalNotices]
    assert kinds(run={"show_replies": False}) == [OpeningNotices, SignalNotices]
    assert kinds(agent={"command": ["true"]}) == [ReplyNotices, SignalNotices]
    assert kinds(kind="distill", reward={"kind": "none"}, trainer={"reference_path": "t"}) == [
        OpeningNotices,
        ReplyNotices,
    ]


def test_an_agent_that_failed_in_its_first_eight_episodes_ends_the_run_and_one_success_forgives() -> None:
    (whole,) = made_groups(1, 8)
    failed = Failed(kind="agent_raised", detail="task t: KeyError: 'x' (at agent.py:3)")
    lost = Sample(trajectory=failed, score=Unscored(kind="not_played"))
    seven, eight = (Failed(kind="too_few_survivors", samples=(lost,) * count) for count in (7, 8))
    notices = LossNotices(lambda words: None, Path("logs"))
    notices.notice(seven)
    with pytest.raises(FailureBudgetSpent, match="failed in all of its first 15 episodes; most often agent_raised"):
        notices.notice(eight)
    lucky = LossNotices(lambda words: None, Path("logs"))
    for outcome in (seven, replace(whole, samples=(lost, whole.samples[0])), eight, eight):
        lucky.notice(outcome)


def test_an_alarm_is_told_when_it_begins_with_the_setting_to_change() -> None:
    told: list[str] = []
    notices = AlarmNotices(told.append, {"sampling": {"max_tokens": 80}, "environment": None})
    for version, truncated in enumerate([0.7, 0.6, 0.625, 0.7, 0.1, 0.7, 0.7, 0.5], 1):
        notices.notice(version, {"response/truncated": truncated})
    words = "a limit cut off {} of the episodes: sampling.max_tokens is 80 (`rlhf explain response/truncated`)"
    assert told == [words.format("62.5 %"), words.format("50 %")]
