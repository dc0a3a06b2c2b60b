"""What ranks say of a batch finds its tokens and samples again, whoever computed them."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from rlhf.trainer.batching.batch import Batch, Minibatch, filled, places_of
from rlhf.trainer.batching.forward_outputs import with_forward_outputs
from tests.trainer.test_microbatches import cut, made_batch, several_segments


def firsts_of(batch: Batch, part: tuple[Minibatch, ...]) -> list[int]:
    """The place of the first token of every sequence of a part, found by brute force."""
    flat = np.arange(batch.tokens)
    return [
        int(flat[micro.places[micro.sequences == number]].min())
        for micro in chain(*part)
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
        assert gathered.values is not None
        assert gathered.values.tolist() == list(range(batch.tokens))
        assert gathered.last_values is not None
        assert gathered.last_values.tolist() == [1000 + last[n] for n in range(len(batch.samples))]
        assert (gathered.proximal_logprobs, gathered.reference_logprobs) == (None, None)


def test_ranks_that_were_not_asked_for_values_have_none() -> None:
    batch = made_batch(several_segments())
    (part,) = cut(batch)
    gathered = with_forward_outputs(batch, [part], [{"proximal_logprobs": -places_of(part).astype(np.float32)}])
    assert gathered.proximal_logprobs is not None
    assert gathered.proximal_logprobs.tolist() == [-float(n) for n in range(batch.tokens)]
    assert (gathered.values, gathered.last_values) == (None, None)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_micro_batches_are_filled_with_a_rank_s_columns(minibatches: int) -> None:
    batch = made_batch(several_segments())
    for part in cut(batch, ranks=2, minibatches=minibatches):
        after = filled(part, {"returns": places_of(part).astype(np.float32)})
        assert list(map(len, after)) == list(map(len, part))
        for before, micro in zip(chain(*part), chain(*after), strict=True):
            assert micro.returns is not None
            assert before.returns is None
            np.testing.assert_array_equal(micro.returns, micro.places)
            np.testing.assert_array_equal(micro.behaviour_logprobs, before.behaviour_logprobs)
            assert micro.token_ids is before.token_ids
