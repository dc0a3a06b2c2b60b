"""What ranks say of a batch finds its tokens and samples again, whoever computed them."""

from __future__ import annotations

import numpy as np
import torch

from rlhf.trainer.forward_outputs import Columns, RankForwardOutputs, gather_forward_outputs
from tests.trainer.test_microbatches import cut, made_batch, several_segments


def said(places: list[int], values: list[float], sequences: list[tuple[int, int, float]]) -> RankForwardOutputs:
    """A rank's values at its places, and of each sequence its sample, its first place, and the value behind it."""
    return RankForwardOutputs(
        places=np.array(places, np.int64),
        samples=np.array([sample for sample, _, _ in sequences], np.int64),
        firsts=np.array([first for _, first, _ in sequences], np.int64),
        columns={"values": np.array(values, np.float32)},
        last_values=np.array([value for _, _, value in sequences], np.float32),
    )


def test_numbers_come_to_their_places_and_a_sample_s_last_value_is_that_behind_its_last_sequence() -> None:
    one = said([4, 5, 0], [0.4, 0.5, 0.0], [(1, 4, 14.0), (0, 0, 10.0)])
    other = said([3, 2, 1], [0.3, 0.2, 0.1], [(1, 3, 13.0), (1, 2, 12.0), (0, 1, 11.0)])
    for answers in ([one, other], [other, one]):
        scores = gather_forward_outputs(answers, 6, 3)
        np.testing.assert_allclose(scores.values, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], rtol=1e-6)
        assert scores.last_values.tolist() == [11.0, 14.0, 0.0], "nothing was said of the last sample"
        assert (scores.proximal, scores.reference) == (None, None)


def test_ranks_that_were_not_asked_for_values_have_none() -> None:
    answer = RankForwardOutputs(
        places=np.array([1, 0]), samples=np.array([0]), firsts=np.array([0]),
        columns={"proximal": np.array([-1.0, -2.0], np.float32)}, last_values=None,
    )  # fmt: skip
    scores = gather_forward_outputs([answer], 2, 1)
    assert scores.proximal.tolist() == [-2.0, -1.0]
    assert (scores.values, scores.last_values) == (None, None)


def test_a_rank_collects_what_it_computes_micro_batch_by_micro_batch() -> None:
    batch = made_batch(several_segments())
    answers = []
    for rank in cut(batch, ranks=2):
        columns = Columns()
        for micro in rank[0].microbatches:
            columns.begin(micro)
            columns.keep("proximal", torch.tensor(micro.places, dtype=torch.float32))
            columns.keep("last_values", torch.tensor(micro.ends, dtype=torch.float32))
        answers.append(columns.answer())
    for answer in answers:
        assert set(answer.columns) == {"proximal"}
        assert len(answer.last_values) == len(answer.samples) == len(answer.firsts)
        np.testing.assert_array_equal(np.searchsorted(batch.offsets, answer.firsts, side="right") - 1, answer.samples)
    firsts = sorted(int(first) for answer in answers for first in answer.firsts)
    assert firsts == sorted(sequence.place for sequence in batch.sequences)
    scores = gather_forward_outputs(answers, batch.tokens, len(batch.samples))
    assert scores.proximal.tolist() == list(range(batch.tokens))
