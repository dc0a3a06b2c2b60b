"""Long rows with a shared prefix: both passes of a model without masks, against blocks with a mask of all scores."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.learner.clock import fastest, peak_bytes
from benchmarks.learner.figures import Figure
from rlhf.models import blocks
from rlhf.models.config import TinyModelConfig
from rlhf.models.policy import PolicyModel
from rlhf.models.tiny import byte_tokenizer, tiny_model

TOKENS = (2048, 8192, 16_384)
SHAPE = TinyModelConfig(
    hidden_size=256, intermediate_size=512, layers=2, heads=4, kv_heads=2, max_position_embeddings=TOKENS[-1]
)


def figures(rounds: int) -> list[Figure]:
    policy = PolicyModel(tiny_model(SHAPE, byte_tokenizer(), seed=0))
    found, held = [], []
    for tokens in TOKENS:
        unmasked, masked = passes(policy, tokens, blocks.LONG_KEYS), passes(policy, tokens, sys.maxsize)
        seconds = fastest(rounds if tokens < TOKENS[-1] else 1, unmasked, masked)
        memory = [peak_bytes(side) for side in (unmasked, masked)]
        held.append(memory[0])
        speed, size = (
            " against ".join(pair)
            for pair in ([f"{tokens / s:.0f}" for s in seconds], [f"{m / 2**20:.0f}" for m in memory])
        )
        found.append(
            Figure(name=f"long_speed_{tokens}", value=seconds[1] / seconds[0], bound=0.9, how=f"{speed} tokens/s")
        )
        found.append(
            Figure(
                name=f"long_memory_{tokens}", value=memory[0] / memory[1], bound=1.1, at_most=True, how=f"{size} MiB"
            )
        )
    growth = Figure(
        name="long_memory_growth", value=held[-1] / held[-2], bound=2.05, at_most=True, how="16,384 over 8,192 tokens"
    )
    return [*found, growth]


def passes(policy: PolicyModel, tokens: int, long_keys: int) -> Callable[[], tuple[Tensor, ...]]:
    """Both passes of a row: a prompt of a quarter of the tokens, and three replies. Runs that see more than
    `long_keys` tokens have no mask."""
    quarter = tokens // 4
    ids = torch.arange(tokens)[None] % 250 + 3
    reply = torch.arange(quarter, 2 * quarter)
    where = torch.cat([torch.arange(2 * quarter), reply, reply])[None]
    targets = torch.arange(quarter, tokens)
    sources = torch.where(where[0, targets] == quarter, quarter - 1, targets - 1)

    def run() -> tuple[Tensor, ...]:
        kept, blocks.LONG_KEYS = blocks.LONG_KEYS, long_keys
        try:
            logprobs, _ = policy(ids, where, sources, targets, 1.0)
            return torch.autograd.grad(logprobs.sum(), list(policy.parameters()))
        finally:
            blocks.LONG_KEYS = kept

    return run
