"""The learner's benchmark: both sides of a ratio do the same work, and a bound that is missed is named."""

from __future__ import annotations

import torch

from benchmarks.learner.clock import fastest, peak_bytes
from benchmarks.learner.model import PROMPT_TOKENS, SAMPLES, batch
from benchmarks.learner.packing import microbatches, prompt_of, useful_share

REPLIES = [3, 40, 1, 7, 200, 9, 2, 5, 11, 4, 30, 8, 1, 1, 60, 2]


def test_a_prompt_that_is_computed_twice_is_no_useful_token() -> None:
    useful = 2 * PROMPT_TOKENS + sum(REPLIES)
    whole = batch(REPLIES)
    assert len({prompt_of(sequence).tobytes() for sequence in whole.sequences}) == len(REPLIES) / SAMPLES
    assert useful_share(whole) == useful / sum(micro.tokens for micro in microbatches(whole, ranks=2))


def test_the_peak_counts_what_is_held_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            a = torch.empty(1000)
            b = torch.empty(500)
            del a, b

    assert peak_bytes(work) == 6000
    assert len(fastest(2, work, work)) == 2
