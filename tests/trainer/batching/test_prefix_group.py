"""Sequences that begin alike: which are computed together, and where each token comes to lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlhf.trainer.batching.prefix_group import PrefixGroup, TokenSequence, group_by_prefix, laid_out


def sequence(context: list[int], reply: list[int], actions: list[int] | None = None, place: int = 0) -> TokenSequence:
    """`actions` are places in the sequence; the whole reply when absent."""
    whole = range(len(context), len(context) + len(reply)) if actions is None else actions
    return TokenSequence(token_ids=np.array(context + reply, np.int32), actions=np.array(whole, np.int64), place=place)


def test_experts_lie_where_their_tokens_do() -> None:
    one, other = sequence([1, 2, 3], [4, 5]), sequence([1, 2, 3], [6, 7, 8])
    one = replace(one, routing=np.arange(5, dtype=np.int16)[:, None, None])
    other = replace(other, routing=np.arange(10, 16, dtype=np.int16)[:, None, None])
    layout = laid_out(PrefixGroup(sequences=(one, other)))
    assert layout.routing is not None
    assert layout.routing[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 13, 14, 15], "the shared tokens have those of the first"
    assert laid_out(PrefixGroup(sequences=(sequence([1], [2]),))).routing is None


def test_only_whole_contexts_that_are_equal_are_shared() -> None:
    alike, later = sequence([1, 2, 3], [9]), sequence([1, 2, 4], [9])
    longer, again = sequence([1, 2, 3, 9], [9]), sequence([1, 2, 3], [8, 7])
    found = group_by_prefix([alike, later, longer, again], 100, 100)
    assert [prefix_group.sequences for prefix_group in found] == [(alike, again), (later,), (longer,)]
    assert [prefix_group.shared for prefix_group in found] == [3, 3, 4]
    assert [prefix_group.tokens for prefix_group in found] == [3 + 1 + 2, 4, 5]


def test_as_many_are_together_as_fit_to_the_last_token_in_their_order() -> None:
    sequences = [sequence([1, 2, 3], [n, n]) for n in range(5)]
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 7, 7)] == [2, 2, 1]
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 8, 8)] == [2, 2, 1]
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 9, 9)] == [3, 2]
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 1, 1)] == [1] * 5
    assert [one for prefix_group in group_by_prefix(sequences, 7, 7) for one in prefix_group.sequences] == sequences


def test_a_context_that_fills_a_row_is_shared_by_as_many_as_fit_into_a_micro_batch() -> None:
    sequences = [sequence([1, 2, 3], [n, n]) for n in range(5)]
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 3, 9)] == [3, 2]
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 4, 9)] == [1] * 5
    assert [len(prefix_group.sequences) for prefix_group in group_by_prefix(sequences, 2, 13)] == [5]


def test_a_prefix_group_is_its_context_once_and_its_branches_behind_it() -> None:
    first = sequence([1, 2, 3], [4, 5], place=10)
    second = sequence([1, 2, 3], [6, 0, 0, 7], actions=[3, 6], place=20)
    layout = laid_out(PrefixGroup(sequences=(first, second)))
    assert layout.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 0, 0, 7]
    assert layout.position_ids.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    assert layout.targets.tolist() == [3, 4, 5, 8]
    assert layout.sources.tolist() == [2, 3, 2, 7], "the first token of a branch follows the context"
    assert layout.places.tolist() == [10, 11, 20, 21]
    assert layout.sizes.tolist() == [2, 2]
    assert layout.ends.tolist() == [4, 8]
    assert layout.token_ids.dtype == layout.position_ids.dtype == np.int32
    assert {layout.sizes.dtype, layout.ends.dtype, layout.sources.dtype, layout.targets.dtype} == {np.dtype(np.int64)}
