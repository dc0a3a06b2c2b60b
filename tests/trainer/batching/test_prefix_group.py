"""Sequences that begin alike: which are computed together, and where each token comes to lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf.trainer.batching.batch import MicroBatch, assemble, build_minibatches
from rlhf.trainer.batching.packing import group_by_prefix
from rlhf.types import Segment, TokenKind


def sequence(context: list[int], reply: list[int], actions: list[int] | None = None) -> Segment:
    """`actions` are places in the sequence; the whole reply when absent."""
    length = len(context) + len(reply)
    kinds = np.full(length, TokenKind.ENV, np.int8)
    kinds[list(range(len(context), length)) if actions is None else actions] = TokenKind.ACTION
    return Segment(
        token_ids=np.array(context + reply, np.int32), kinds=kinds,
        behaviour_logprobs=np.zeros(length, np.float32), versions=np.zeros(length, np.int32),
    )  # fmt: skip


def in_one_row(*sequences: Segment) -> MicroBatch:
    count = len(sequences)
    batch = assemble(
        [(one,) for one in sequences], sample_groups=[0] * count, samples=[(0, n) for n in range(count)], groups=1
    )
    (((minibatch),),) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=100, row_tokens=100)
    (microbatch,) = minibatch
    return microbatch


def sizes(sequences: list[Segment], row_tokens: int, microbatch_tokens: int) -> list[int]:
    every = range(len(sequences))
    return [len(one.members) for one in group_by_prefix(sequences, every, every, row_tokens, microbatch_tokens)]


def test_experts_lie_where_their_tokens_do() -> None:
    one, other = sequence([1, 2, 3], [4, 5]), sequence([1, 2, 3], [6, 7, 8])
    one = replace(one, routing=np.arange(5, dtype=np.int16)[:, None, None])
    other = replace(other, routing=np.arange(10, 16, dtype=np.int16)[:, None, None])
    routing = in_one_row(one, other).routing
    assert routing is not None
    assert routing[0, :, 0, 0].tolist() == [0, 1, 2, 3, 4, 13, 14, 15], "the shared tokens have those of the first"
    assert in_one_row(sequence([1], [2])).routing is None


def test_only_whole_contexts_that_are_equal_are_shared() -> None:
    sequences = [sequence([1, 2, 3], [9]), sequence([1, 2, 4], [9]), sequence([1, 2, 3, 9], [9]),
                 sequence([1, 2, 3], [8, 7])]  # fmt: skip
    found = group_by_prefix(sequences, range(4), range(4), 100, 100)
    assert [one.members for one in found] == [(0, 3), (1,), (2,)]
    assert [one.tokens(sequences) for one in found] == [3 + 1 + 2, 4, 5]


def test_as_many_are_together_as_fit_to_the_last_token_in_their_order() -> None:
    sequences = [sequence([1, 2, 3], [n, n]) for n in range(5)]
    assert [sizes(sequences, most, most) for most in (7, 8, 9, 1)] == [[2, 2, 1], [2, 2, 1], [3, 2], [1] * 5]
    found = group_by_prefix(sequences, range(5), range(5), 7, 7)
    assert [n for one in found for n in one.members] == list(range(5))


def test_a_context_that_fills_a_row_is_shared_by_as_many_as_fit_into_a_micro_batch() -> None:
    sequences = [sequence([1, 2, 3], [n, n]) for n in range(5)]
    assert [sizes(sequences, row, most) for row, most in ((3, 9), (4, 9), (2, 13))] == [[3, 2], [1] * 5, [5]]


def test_a_prefix_group_is_its_context_once_and_its_branches_behind_it() -> None:
    micro = in_one_row(sequence([1, 2, 3], [4, 5]), sequence([1, 2, 3], [6, 0, 0, 7], actions=[3, 6]))
    assert micro.token_ids.tolist() == [[1, 2, 3, 4, 5, 6, 0, 0, 7]]
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5, 6]]
    assert micro.targets.tolist() == [3, 4, 5, 8]
    assert micro.sources.tolist() == [2, 3, 2, 7], "the first token of a branch follows the context"
    assert micro.places.tolist() == [0, 1, 2, 3]
    assert micro.sequences.tolist() == [0, 0, 1, 1]
    assert micro.ends.tolist() == [4, 8]
    assert micro.token_ids.dtype == micro.position_ids.dtype == np.int32
    assert {column.dtype for column in (micro.ends, micro.sources, micro.targets)} == {np.dtype(np.int64)}


def test_without_packing_a_row_is_one_sequence_and_rows_of_similar_length_are_together() -> None:
    sequences = [sequence([1, 2, 3], [4] * n) for n in (1, 5, 2, 5)]
    batch = assemble([(one,) for one in sequences], sample_groups=[0] * 4, samples=[(0, n) for n in range(4)], groups=1)
    (((minibatch),),) = build_minibatches(batch, minibatches=1, ranks=1, tokens_per_microbatch=16, packed=False)
    assert [one.token_ids.shape for one in minibatch] == [(2, 8), (2, 5)]
    assert [one.position_ids.tolist() for one in minibatch][1] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]
    assert [one.places.tolist() for one in minibatch] == [[*range(1, 6), *range(8, 13)], [6, 7, 0]]


def test_rewritten_contexts_of_a_sample_share_the_longest_as_far_as_they_agree_and_fit() -> None:
    """The second context kept the reply [8, 9] without its thinking [7]; the third ends within it."""
    sequences = [sequence([1, 2, 3], [7, 8, 9]), sequence([1, 2, 3, 8, 9, 4], [7, 5]), sequence([1, 2, 3, 8], [6])]
    (found,) = group_by_prefix(sequences, range(3), [0, 0, 0], 100, 100)
    assert found == ((1, 2, 0), (6, 4, 3))
    assert found.tokens(sequences) == 6 + 2 + 1 + 3
    first, *rest = group_by_prefix(sequences, range(3), [0, 0, 0], 9, 9)
    assert first == ((1, 2), (6, 4))
    assert [one.members for one in rest] == [(0,)]
    apart = group_by_prefix(sequences, range(3), range(3), 100, 100)
    assert [one.members for one in apart] == [(0,), (1,), (2,)], "other samples share equal contexts only"
