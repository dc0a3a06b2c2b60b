"""A micro-batch, field by field, against the segments that it was made of."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from rlhf.trainer.batching.batch import Batch, MicroBatch, Minibatch, build_minibatches
from rlhf.types import EpisodeStatus, Group, Sample, Scored, Segment, Task, Ticket, Trajectory
from tests.trainer.made import made_batch, made_groups, made_segment, with_one_prompt


def several_segments(count: int = 4) -> list[Group]:
    """Groups of two samples that share their prompt, and of two with two segments each, one of them without actions."""
    rng = np.random.default_rng(3)
    groups = []
    for ordinal, group in enumerate(with_one_prompt(one) for one in made_groups(count, 2)):
        task = Task(id=str(ordinal), messages=())
        parts = [(made_segment(rng, 3, 0), made_segment(rng, 4, 2), made_segment(rng, 5, 3)) for _ in range(2)]
        rewritten = [
            Sample(
                trajectory=Trajectory(task=task, segments=segments, status=EpisodeStatus.TERMINATED),
                score=Scored(value=1),
            )
            for segments in parts
        ]
        samples = (*group.samples, *rewritten)
        groups.append(Group(ticket=Ticket(ordinal=ordinal, version=0), task=task, samples=samples))
    return groups


def segments_of(groups: list[Group]) -> list[tuple[int, Segment]]:
    """Every segment with an action, with the number of its sample, in the order of the batch."""
    samples = [sample for group in groups for sample in group.samples]
    return [(n, one) for n, sample in enumerate(samples) for one in sample.trajectory.segments if one.action_mask.any()]


def cut(batch: Batch, **changes: int) -> list[tuple[Minibatch, ...]]:
    plan = {"minibatches": 1, "ranks": 1, "tokens_per_microbatch": 120, "row_tokens": 60} | changes
    return build_minibatches(batch, **plan)


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return several_segments()


@pytest.fixture(scope="module")
def batch(groups: list[Group]) -> Batch:
    return made_batch(groups)


@pytest.fixture(scope="module")
def microbatches(batch: Batch) -> tuple[MicroBatch, ...]:
    ((minibatch,),) = cut(batch)
    assert len(minibatch) > 1
    assert any(len(micro.token_ids) > 1 for micro in minibatch), "rows behind the first one"
    return minibatch


def test_every_sequence_is_there_once_with_its_sample_its_last_token_and_its_actions(
    groups: list[Group], batch: Batch, microbatches: tuple[MicroBatch, ...]
) -> None:
    expected = sorted((n, int(s.token_ids[-1]), s.token_ids[s.action_mask].tolist()) for n, s in segments_of(groups))
    found = []
    for micro in microbatches:
        ids = micro.token_ids.ravel()
        for sequence, (sample, end) in enumerate(zip(micro.samples, micro.ends, strict=True)):
            found.append((int(sample), int(ids[end]), ids[micro.targets[micro.sequences == sequence]].tolist()))
        assert micro.tokens == micro.token_ids.size == ids.size
    assert sorted(found) == expected
    assert batch.tokens == sum(len(actions) for _, _, actions in expected)


def test_what_is_no_token_of_a_sequence_is_a_sequence_of_its_own(microbatches: tuple[MicroBatch, ...]) -> None:
    for micro in microbatches:
        filled = [int(max([0, *(end - r * row.size + 1 for end in micro.ends if end // row.size == r)]))
                  for r, row in enumerate(micro.token_ids)]  # fmt: skip
        for row, positions, tokens in zip(micro.token_ids, micro.position_ids, filled, strict=True):
            assert tokens > 0
            assert not row[tokens:].any()
            assert not positions[tokens:].any()
        assert max(filled) == micro.token_ids.shape[1], "as wide as its longest row"
        assert micro.token_ids.dtype == micro.position_ids.dtype == np.int32


def test_shared_prompts_are_computed_once(groups: list[Group], microbatches: tuple[MicroBatch, ...]) -> None:
    alone = sum(len(segment.token_ids) for _, segment in segments_of(groups))
    shared = sum(int((group.samples[0].trajectory.segments[0].kinds == 0).sum()) for group in groups)
    computed = sum(int((micro.position_ids[:, 1:] > 0).sum()) + len(micro.token_ids) for micro in microbatches)
    assert sum(len(micro.ends) for micro in microbatches) == len(segments_of(groups))
    assert computed <= alone - shared + len(groups), "the prompt of two samples, once"


def test_ranks_that_compute_together_know_the_most_that_one_of_them_has(batch: Batch) -> None:
    parts = cut(batch, ranks=3)
    for together in zip(*(rank[0] for rank in parts), strict=True):
        assert {micro.most for micro in together} == {max(len(micro.targets) for micro in together)}


def test_a_rank_without_work_computes_padding(batch: Batch) -> None:
    parts = cut(made_batch(made_groups(1, 2)), ranks=3, row_tokens=1)
    idle = [micro for rank in parts for micro in rank[0] if len(micro.targets) == 0]
    assert idle
    for micro in idle:
        assert micro.token_ids.tolist() == micro.position_ids.tolist() == [[0]]
        assert len(micro.ends) == len(micro.samples) == len(micro.sources) == 0
        assert micro.most > 0


def test_a_minibatch_counts_its_tokens_and_samples_whatever_the_rank(groups: list[Group], batch: Batch) -> None:
    sizes = [[sample.trajectory.action_tokens for sample in group.samples] for group in groups]
    for rank in cut(batch, minibatches=2, ranks=2):
        assert [(part[0].step_tokens, part[0].step_samples) for part in rank] == [
            (sum(map(sum, half)), sum(map(len, half))) for half in (sizes[:2], sizes[2:])
        ]
        assert all(micro.denominator == micro.step_tokens for micro in chain(*rank))


def test_whole_groups_are_never_parted(groups: list[Group]) -> None:
    batch = made_batch([with_one_prompt(group) for group in made_groups(3, 4)])
    ((minibatch,),) = build_minibatches(
        batch, minibatches=1, ranks=1, tokens_per_microbatch=1, row_tokens=1, whole_groups=True
    )
    found = [sorted(set(batch.sample_groups[micro.samples].tolist())) for micro in minibatch]
    assert sorted(found) == [[0], [1], [2]]
    assert all(len(micro.samples) == 4 for micro in minibatch)


def test_a_row_is_never_wider_than_a_micro_batch_may_be(batch: Batch) -> None:
    ((minibatch,),) = cut(batch, tokens_per_microbatch=30, row_tokens=60)
    assert all(micro.tokens <= 30 or len(micro.token_ids) == len({*micro.samples}) == 1 for micro in minibatch)
