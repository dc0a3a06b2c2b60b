"""The model of the end-to-end benchmark never ends a reply of its own accord."""

from __future__ import annotations

import torch

from benchmarks.end_to_end.model import SHAPE, silence
from rlhf.models.tiny import byte_tokenizer, tiny_model


def test_the_end_token_is_out_of_reach() -> None:
    tokenizer = byte_tokenizer()
    model = tiny_model(SHAPE, tokenizer, seed=0)
    silence(model, tokenizer.eos_token_id)
    ids = torch.randint(3, 250, (8, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)
    assert float(logprobs[..., tokenizer.eos_token_id].max()) < -18, "18,000 tokens are sampled an update"
