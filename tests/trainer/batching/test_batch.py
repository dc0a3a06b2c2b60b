from dataclasses import replace

import numpy as np
import pytest

from rlhf.errors import NotFinite
from rlhf.trainer.batching.batch import Minibatch, build_batch, build_minibatches
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Segment, Task, Ticket, TokenKind, Trajectory
from tests.trainer.made import made_batch, made_groups, made_segment, without_score


def all_places(parts: list[tuple[Minibatch, ...]]) -> list[int]:
    return [int(p) for rank in parts for step in rank for micro in step for p in micro.places]


def one_trajectory(*segments: Segment) -> Group:
    task = Task(id="0", messages=())
    trajectory = Trajectory(task=task, segments=segments, status=EpisodeStatus.TERMINATED)
    return Group(
        ticket=Ticket(ordinal=0, version=0),
        task=task,
        samples=(Sample(trajectory=trajectory, score=Scored(value=1.0)),),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 100, 10_000])
@pytest.mark.parametrize("minibatches", [1, 2, 6])
def test_every_action_token_is_computed_once_whatever_the_plan(ranks: int, tokens: int, minibatches: int) -> None:
    batch = made_batch(made_groups())
    parts = build_minibatches(batch, minibatches=minibatches, ranks=ranks, tokens_per_microbatch=tokens, row_tokens=64)
    assert sorted(all_places(parts)) == list(range(batch.tokens))
    for step in zip(*parts, strict=True):
        assert len({len(part) for part in step}) == 1
        assert len({micro.denominator for part in step for micro in part}) == 1


def test_a_micro_batch_holds_each_token_with_what_precedes_it() -> None:
    groups = made_groups()
    batch = made_batch(groups)
    segments = [s.trajectory.segments[0] for g in groups for s in g.samples]
    (parts,) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=200, row_tokens=64)
    for micro in parts[0]:
        ids, positions = micro.token_ids.ravel(), micro.position_ids.ravel()
        for target, place in zip(micro.targets, micro.places, strict=True):
            sample = int(np.searchsorted(batch.offsets, place, side="right")) - 1
            position = int(positions[target])
            seen = ids[target - position : target + 1]
            assert seen.tolist() == segments[sample].token_ids[: position + 1].tolist()
            assert positions[target - position] == 0


@pytest.mark.parametrize("order", [1, -1])
def test_a_token_carries_the_experts_that_were_chosen_for_it(order: int) -> None:
    """Where one segment's are known, those of the others are said to be unknown."""
    rng = np.random.default_rng(0)
    known, unknown = made_segment(rng, 5, 4), made_segment(rng, 7, 3)
    known = replace(known, token_ids=np.arange(1000, 1009, dtype=np.int32))
    known = replace(known, routing=known.token_ids.astype(np.int16)[:, None, None])
    batch = build_batch([one_trajectory(known), one_trajectory(unknown)][::order])
    parts = build_minibatches(
        batch,
        minibatches=1, ranks=1, tokens_per_microbatch=100, row_tokens=12,
    )  # fmt: skip
    (micro,) = parts[0][0]
    assert micro.routing is not None
    assert micro.routing.dtype == np.int16
    experts = np.where(np.isin(micro.token_ids, known.token_ids), micro.token_ids, -1)
    np.testing.assert_array_equal(micro.routing[:, :, 0, 0], experts)
    assert made_batch(made_groups()).sequences[0].routing is None


def test_a_token_carries_its_own_sample_s_numbers() -> None:
    groups = made_groups()
    batch = made_batch(groups)
    (parts,) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=200, row_tokens=64)
    for micro in parts[0]:
        np.testing.assert_array_equal(micro.advantages, batch.advantages[micro.places])
        np.testing.assert_array_equal(micro.behaviour_logprobs, batch.behaviour_logprobs[micro.places])
    flat = np.concatenate(
        [
            s.trajectory.segments[0].behaviour_logprobs[s.trajectory.segments[0].action_mask]
            for g in groups
            for s in g.samples
        ]
    )
    np.testing.assert_array_equal(batch.behaviour_logprobs, flat)


def test_samples_without_a_score_are_not_there() -> None:
    batch = made_batch([without_score(group, 1) for group in made_groups(2)])
    assert batch.samples == ((0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3))


def test_a_group_read_for_one_policy_has_that_policy_s_samples_at_their_places() -> None:
    (group,) = made_groups(1, 4)
    samples = [
        replace(one, trajectory=replace(one.trajectory, policy="ab"[index % 2]))
        for index, one in enumerate(group.samples)
    ]
    group = replace(group, samples=tuple(samples))
    assert made_batch([replace(group, policy="a")]).samples == ((0, 0), (0, 2))
    assert made_batch([replace(group, policy="b")]).samples == ((0, 1), (0, 3))
    assert replace(group, policy="c").trainable == ()


def test_environment_tokens_between_turns_are_context_and_not_trained() -> None:
    rng = np.random.default_rng(0)
    plain = made_segment(rng, 3, 6)
    kinds = np.array([0, 0, 0, 1, 1, 2, 2, 1, 1], np.int8)
    segment = Segment(
        token_ids=plain.token_ids, kinds=kinds, behaviour_logprobs=plain.behaviour_logprobs, versions=plain.versions
    )
    batch = made_batch([one_trajectory(segment)])
    assert np.flatnonzero(batch.sequences[0].action_mask).tolist() == [3, 4, 7, 8]
    np.testing.assert_array_equal(batch.behaviour_logprobs, plain.behaviour_logprobs[[3, 4, 7, 8]])


def test_segments_of_one_trajectory_share_its_advantage_and_its_place_in_the_answers() -> None:
    rng = np.random.default_rng(0)
    group = one_trajectory(made_segment(rng, 3, 2), made_segment(rng, 4, 3))
    batch = build_batch([group], aggregation="sequence_mean")
    assert [len(values) for values in batch.per_sample(batch.advantages)] == [5]
    np.testing.assert_allclose(batch.loss_weights, 0.2)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_one_token_alone_has_the_whole_weight_and_is_the_whole_denominator(aggregation: str) -> None:
    batch = build_batch([one_trajectory(made_segment(np.random.default_rng(0), 3, 1))], aggregation=aggregation)
    (parts,) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=64, aggregation=aggregation)
    assert batch.loss_weights.tolist() == [1.0]
    assert parts[0][0].denominator == 1.0


def test_a_token_is_current_where_the_learner_s_own_version_sampled_it() -> None:
    rng = np.random.default_rng(0)
    first, second = made_segment(rng, 2, 3), made_segment(rng, 1, 2)
    first, second = (
        replace(one, versions=np.array(versions, np.int32))
        for one, versions in ((first, [-1, -1, 3, 2, 3]), (second, [-1, 4, 3]))
    )
    groups = [one_trajectory(first, second)]
    current = build_batch(groups, version=3).current
    assert current is not None
    assert current.tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert build_batch(groups).current is None


def test_what_goes_to_the_ranks_is_in_single_precision() -> None:
    columns = build_batch(made_groups(1), version=0)
    assert columns.current is not None
    found = [columns.behaviour_logprobs, columns.loss_weights, columns.advantages, columns.current]
    assert {column.dtype for column in found} == {np.dtype(np.float32)}


def test_a_context_that_starts_with_an_action_is_a_programming_error() -> None:
    rng = np.random.default_rng(0)
    segment = made_segment(rng, 0, 3)
    assert segment.kinds[0] == TokenKind.ACTION
    with pytest.raises(ValueError, match="nothing precedes it"):
        made_batch([one_trajectory(segment)])


def test_a_batch_without_anything_to_train_has_no_steps() -> None:
    batch = made_batch([without_score(one_trajectory(made_segment(np.random.default_rng(0), 3, 2)), 0)])
    assert build_minibatches(batch, minibatches=1, ranks=2, tokens_per_microbatch=64) == [(), ()]
    assert batch.per_sample(batch.advantages) == []
    assert batch.sample_groups.dtype == np.int64


def test_an_engine_s_log_prob_that_is_no_number_is_not_trained() -> None:
    segment = made_segment(np.random.default_rng(0), 3, 2)
    broken = Segment(
        token_ids=segment.token_ids,
        kinds=segment.kinds,
        behaviour_logprobs=np.full(5, np.nan, np.float32),
        versions=segment.versions,
    )
    with pytest.raises(NotFinite, match="log-prob of a sampled token is not a number"):
        made_batch([one_trajectory(broken)])


def test_what_stands_where_nothing_was_sampled_is_not_read() -> None:
    def poisoned(segment: Segment) -> Segment:
        logprobs = np.where(segment.action_mask, segment.behaviour_logprobs, np.nan).astype(np.float32)
        versions = np.where(segment.action_mask, segment.versions, 10**6).astype(np.int32)
        return replace(segment, behaviour_logprobs=logprobs, versions=versions)

    segment = made_segment(np.random.default_rng(0), 5, 4)
    sound, other = (made_batch([one_trajectory(one)]) for one in (segment, poisoned(segment)))
    np.testing.assert_array_equal(sound.behaviour_logprobs, other.behaviour_logprobs)
    np.testing.assert_array_equal(sound.loss_weights, other.loss_weights)
