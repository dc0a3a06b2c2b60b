"""Second uses: of groups whose rewards differ, once, later and not too late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.runs.episode_parts import EpisodeParts, read_episodes
from rlhf.runs.episode_records import ended_in_update, records_of
from rlhf.runs.recorded_episodes import groups_again, recorded_groups
from rlhf.runs.records import EpisodeOutcome
from rlhf.trainer.batching.batch import build_batch, build_minibatches
from rlhf.trainer.buffer import Accounts, TicketBuffer
from rlhf.trainer.config import ReplayConfig
from rlhf.trainer.credit.statistics import batch_statistics, trained_statistics
from rlhf.trainer.replay import GroupReplay, as_second_use
from rlhf.types import Group, Sample, Scored, Ticket, TrainedSample, Updated
from tests.small_tasks import sorting
from tests.trainer.made import made_groups, without_score


def group(ordinal: int, *rewards: float) -> Group:
    (made,) = made_groups(1, len(rewards), seed=ordinal)
    samples = tuple(
        Sample(trajectory=one.trajectory, score=Scored(value=value))
        for one, value in zip(made.samples, rewards, strict=True)
    )
    return replace(made, ticket=Ticket(ordinal=ordinal, version=0), samples=samples)


def ordinals(groups: Sequence[Group]) -> list[int]:
    return [one.ticket.ordinal for one in groups]


def test_the_newest_come_first_then_those_whose_rewards_differ_most_and_none_twice_nor_too_late() -> None:
    replay = GroupReplay(ReplayConfig(groups=2))
    first = [group(0, 1, 1, 0, 1), group(1, 1, 1, 1, 1), group(2, 1, 0, 0, 1), group(3, 0, 0, 0, 1)]
    assert replay.second_uses(first, 1) == [], "an update uses nothing of its own twice"
    again = replay.second_uses([group(4, 0, 0, 1, 1)], 2)
    assert ordinals(again) == [2, 0]
    assert all(one.second_use for one in again)
    assert ordinals(replay.second_uses([group(5, 0, 0, 0, 0)], 3)) == [4, 3]
    assert replay.waiting == ()
    assert ordinals(replay.second_uses([group(6, 0, 1, 0, 0), group(7, 0, 1, 1, 0), group(8, 1, 0, 1, 1)], 4)) == []
    assert ordinals(replay.second_uses([], 5)) == [7, 6]
    assert replay.waiting == ((4, 8),)
    assert ordinals(replay.second_uses([], 9)) == [], "five updates later"


def test_without_groups_nothing_is_kept() -> None:
    replay = GroupReplay(ReplayConfig())
    assert replay.second_uses([group(0, 1, 0)], 1) == []
    assert replay.waiting == ()


async def test_second_uses_need_no_ticket_and_follow_the_updates_own_groups() -> None:
    tickets = TicketBuffer(
        groups_per_update=2, max_staleness=0, updates=3, refill_groups=0, failure_budget=1.0,
        replay=GroupReplay(ReplayConfig(groups=1)),
    )  # fmt: skip
    taken = []
    for version in range(3):
        for _ in range(2):
            ticket = await tickets.admit()
            tickets.settle(ticket, replace(group(ticket.ordinal, 1.0, 0.0), ticket=ticket))
        taken.append(ordinals(await tickets.take()))
        tickets.advance(version + 1)
    assert taken == [[0, 1], [2, 3, 0], [4, 5, 2]]
    assert tickets.accounts == Accounts(admitted=6, trained=6, filtered=0, failed=0, in_flight=0)
    assert tickets.waiting == ((2, 3), (1, 1), (3, 4), (3, 5))


def test_second_uses_are_spread_over_the_minibatches() -> None:
    own, again = made_groups(4, 2), [as_second_use(one) for one in made_groups(4, 2)[1:3]]
    batch = build_batch([*own, *again])
    (steps,) = build_minibatches(batch, minibatches=2, ranks=1, tokens_per_microbatch=10_000)
    owned = batch.sample_groups.repeat(np.diff(batch.offsets))
    found = [set(owned[np.concatenate([micro.places for micro in step])].tolist()) for step in steps]
    assert found == [{0, 1, 5}, {2, 3, 4}]


def updated(groups: Sequence[Group]) -> Updated:
    def trained(one: Group, index: int, tokens: int) -> TrainedSample:
        columns = np.random.default_rng(index).normal(size=(3, tokens)).astype(np.float32)
        return TrainedSample(
            ordinal=one.ticket.ordinal,
            sample=index,
            advantages=columns[0],
            proximal_logprobs=columns[1],
            entropies=columns[2],
        )

    samples = (trained(one, index, t.action_tokens) for one in groups for index, t, _ in one.trainable)
    return Updated(metrics={}, samples=tuple(samples))


def test_a_group_comes_back_from_its_records_as_it_is_trained(tmp_path: Path) -> None:
    first = [without_score(group(0, 1, 0, 0.3, 1), 1), group(1, 0.1, 0.2), group(2, 1, 0)]
    second = [as_second_use(first[2])]
    parts = EpisodeParts(tmp_path / "episodes")
    parts.add(*ended_in_update(first, updated(first), 1))
    parts.cut()
    parts.add(*ended_in_update([group(3, 1, 0), *second], updated([group(3, 1, 0), *second]), 2))
    parts.close()
    again = groups_again(tmp_path / "episodes", {0, 2})
    assert again.keys() == {0, 2}
    for ordinal, read in again.items():
        one, other = build_batch([as_second_use(first[ordinal])]), build_batch([as_second_use(read)])
        assert one.samples == other.samples
        assert one.outcomes.tolist() == other.outcomes.tolist()
        assert one.behaviour_logprobs.tolist() == other.behaviour_logprobs.tolist()
        assert [s.token_ids.tolist() for s in one.sequences] == [s.token_ids.tolist() for s in other.sequences]
    assert ordinals(recorded_groups(tmp_path / "episodes")) == [0, 1, 2, 3], (
        "learning from a recording counts none twice"
    )
    used = [one for one in read_episodes(tmp_path / "episodes") if one.outcome is EpisodeOutcome.SECOND_USE]
    assert [(one.ordinal, one.sample, one.update) for one in used] == [(2, 0, 2), (2, 1, 2)]
    assert parts.counts == {"admitted": 10, "trained": 9, "filtered": 0, "failed": 0, "unscored": 1, "in_flight": 0}
    assert next(records_of(*ended_in_update(second, updated(second), 2))).token_ids is None


def test_second_uses_are_counted_and_are_no_new_samples() -> None:
    own, again = [group(5, 1, 0)], [as_second_use(group(0, 0, 0, 1))]
    assert batch_statistics([*own, *again], version=3) == batch_statistics(own, version=3)
    samples = {(one.ticket.ordinal, index) for one in (*own, *again) for index, _, _ in one.trainable}
    assert trained_statistics([*own, *again], samples) == trained_statistics(own, samples) | {
        "replay/groups": 1,
        "replay/samples": 3,
    }


RECIPE = {"model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"trainer": {"replay": {"groups": 33}}}, "at most its groups_per_update of 32"),
        ({"trainer": {"replay": {"groups": 2}, "algorithm": "reinforce_pp", "group_size": 1}},
         "trainer.replay chooses by"),
        ({"trainer": {"replay": {"groups": 2}, "loss": {"policy": "policy_gradient"},
                      "proximal_logprobs": "behaviour"}},
         "policy_gradient with replay trains on another policy's samples"),
        ({"trainer": {"replay": {"groups": 2}}, "kind": "sft"}, "kind: sft does not learn from them"),
        ({"data": {"train": sorting() | {"order": "learnability"}}, "kind": "sft"}, "data.train.order chooses by"),
        ({"data": {"train": [sorting(), sorting(seed=1) | {"order": "learnability"}]},
          "trainer": {"algorithm": "remax"}}, r"data.train.1.order chooses by .* trainer.group_size is 1"),
    ],
    ids=["too-many", "alone", "uncorrected", "sft", "sft-order", "one-of-two"],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(settings: dict, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        recipe_from({**RECIPE, **settings})
    assert len(str(refused.value).splitlines()) <= 2


def test_samples_of_older_weights_get_importance_weights_by_default() -> None:
    trainer = recipe_from({**RECIPE, "trainer": {"replay": {"groups": 4}}}).recipe.trainer
    assert trainer.proximal_logprobs == "recomputed"
    assert (trainer.correction.method, trainer.correction.high) == ("truncate", 2.0)
