"""The learner's benchmark: both sides of a ratio do the same work, and a bound that is missed is named."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.learner.clock import fastest, peak_bytes
from benchmarks.learner.model import PROMPT_TOKENS, SAMPLES, batch
from benchmarks.learner.packing import packed, padded, prompt_of, useful_share
from rlhf.models.config import TinyModelConfig
from rlhf.models.policy import PolicyModel
from rlhf.models.tiny import byte_tokenizer, tiny_model
from rlhf.trainer.batching.batch import MicroBatch

REPLIES = [3, 40, 1, 7, 200, 9, 2, 5, 11, 4, 30, 8, 1, 1, 60, 2]


def test_packing_and_padding_compute_the_same_log_probs() -> None:
    whole = batch(REPLIES)
    policy = PolicyModel(
        tiny_model(TinyModelConfig(hidden_size=64, intermediate_size=64, layers=1), byte_tokenizer(), 0)
    )
    one, other = (in_order(policy, cut(whole), whole.tokens) for cut in (packed, padded))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def in_order(policy: PolicyModel, microbatches: list[MicroBatch], tokens: int) -> np.ndarray:
    flat = np.full(tokens, np.nan)
    for micro in microbatches:
        flat[micro.places] = logprobs_of(policy, micro)
    return flat


@torch.no_grad()
def logprobs_of(policy: PolicyModel, micro: MicroBatch) -> Tensor:
    ids, positions = torch.tensor(micro.token_ids).long(), torch.tensor(micro.position_ids).long()
    logprobs, _ = policy(ids, positions, torch.tensor(micro.sources), torch.tensor(micro.targets), 1.0)
    return logprobs


def test_a_prompt_that_is_computed_twice_is_no_useful_token() -> None:
    useful = 2 * PROMPT_TOKENS + sum(REPLIES)
    whole = batch(REPLIES)
    assert len({prompt_of(sequence).tobytes() for sequence in whole.sequences}) == len(REPLIES) / SAMPLES
    assert useful_share(whole) == useful / sum(micro.tokens for micro in packed(whole, ranks=2))


def test_the_peak_counts_what_is_held_at_once() -> None:
    def work() -> None:
        for _ in range(3):
            a = torch.empty(1000)
            b = torch.empty(500)
            del a, b

    assert peak_bytes(work) == 6000
    assert len(fastest(2, work, work)) == 2
