"""What ranks say of a batch finds its tokens and samples again, whoever computed them."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf.trainer.batching.batch import Batch, Minibatch, microbatches_of, places_of, refilled
from rlhf.trainer.batching.forward_outputs import with_forward_outputs
from tests.trainer.test_microbatches import cut, made_batch, several_segments


def firsts_of(batch: Batch, part: tuple[Minibatch, ...]) -> list[int]:
    """The place of the first token of every sequence of a part, found by brute force."""
    flat = np.arange(batch.tokens)
    return [
        int(flat[micro.places[micro.sequences == number]].min())
        for micro in microbatches_of(part)
        for number in range(len(micro.samples))
    ]


def test_numbers_come_to_their_places_and_a_sample_s_last_value_is_that_behind_its_last_sequence() -> None:
    batch = made_batch(several_segments())
    assert len(batch.sequences) > len(batch.samples), "some samples have several sequences"
    parts = cut(batch, ranks=2)
    answers = [
        {
            "values": places_of(part).astype(np.float32),
            "last_values": np.array([1000 + first for first in firsts_of(batch, part)], np.float32),
        }
        for part in parts
    ]
    last = dict(zip(batch.sequence_samples.tolist(), batch.starts.tolist(), strict=True))
    for order in (slice(None), slice(None, None, -1)):
        gathered = with_forward_outputs(batch, parts[order], answers[order])
        columns = gathered.per_token
        assert columns.values is not None
        assert columns.values.tolist() == list(range(batch.tokens))
        assert gathered.last_values is not None
        assert gathered.last_values.tolist() == [1000 + last[n] for n in range(len(batch.samples))]
        assert (columns.proximal, columns.reference) == (None, None)


def test_ranks_that_were_not_asked_for_values_have_none() -> None:
    batch = made_batch(several_segments())
    (part,) = cut(batch)
    gathered = with_forward_outputs(batch, [part], [{"proximal": -places_of(part).astype(np.float32)}])
    assert gathered.per_token.proximal is not None
    assert gathered.per_token.proximal.tolist() == [-float(n) for n in range(batch.tokens)]
    assert (gathered.per_token.values, gathered.last_values) == (None, None)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_micro_batches_get_the_columns_that_their_batch_has_by_now(minibatches: int) -> None:
    batch = made_batch(several_segments())
    filled = batch.with_columns(returns=np.arange(batch.tokens, dtype=np.float32))
    for part in cut(batch, ranks=2, minibatches=minibatches):
        after = refilled(part, filled.per_token)
        assert [one.denominator for one in after] == [one.denominator for one in part]
        for before, micro in zip(microbatches_of(part), microbatches_of(after), strict=True):
            assert micro.per_token.returns is not None
            np.testing.assert_array_equal(micro.per_token.returns, micro.places)
            assert before.per_token.returns is None
            np.testing.assert_array_equal(micro.per_token.behaviour, before.per_token.behaviour)
            assert micro.token_ids is before.token_ids
