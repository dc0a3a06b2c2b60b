"""The model of the measurements, and batches of made replies as the learner cuts them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.end_to_end.model import SHAPE
from rlhf.models.policy import PolicyModel, RowForward
from rlhf.models.tiny import byte_tokenizer, tiny_model
from rlhf.trainer.batching.batch import Batch, MicroBatch, assemble
from rlhf.types import Segment, TokenKind

VOCABULARY = 2048
PROMPT_TOKENS = 24
SAMPLES = 8


def policy(dtype: torch.dtype, rows: RowForward | None = None) -> PolicyModel:
    """The end-to-end benchmark's model of about 10 M parameters, with a vocabulary of 2,048."""
    model = tiny_model(SHAPE, byte_tokenizer(), seed=0)
    config = model.config
    config.vocab_size = VOCABULARY
    return PolicyModel(type(model)(config).to(dtype).train(), rows)


def batch(replies: Sequence[int], *, shared_prompts: bool = True, prompt_tokens: int = PROMPT_TOKENS) -> Batch:
    """Replies of these lengths, `SAMPLES` a group; with or without one prompt for all samples of a group."""
    rng = np.random.default_rng(0)
    samples, prompt = [], rng.integers(3, 250, prompt_tokens)
    for index, actions in enumerate(replies):
        if not shared_prompts or index % SAMPLES == 0:
            prompt = rng.integers(3, 250, prompt_tokens)
        samples.append((_segment(rng, prompt, actions),))
    identities = [divmod(index, SAMPLES) for index in range(len(replies))]
    return assemble(
        samples, sample_groups=[g for g, _ in identities], samples=identities, groups=-(-len(replies) // SAMPLES)
    )


def loss(module: torch.nn.Module, micro: MicroBatch) -> Tensor:
    """A policy-gradient loss of one micro-batch, with made advantages."""
    token_ids, position_ids = (torch.tensor(x).long() for x in (micro.token_ids, micro.position_ids))
    logprobs, _ = module(token_ids, position_ids, torch.tensor(micro.sources), torch.tensor(micro.targets), 1.0)
    return (logprobs * torch.cos(torch.tensor(micro.places).float())).mean()


def _segment(rng: np.random.Generator, prompt: np.ndarray, actions: int) -> Segment:
    length = len(prompt) + actions
    return Segment(
        token_ids=np.concatenate([prompt, rng.integers(3, 250, actions)]).astype(np.int32),
        kinds=np.array([TokenKind.PROMPT] * len(prompt) + [TokenKind.ACTION] * actions, np.int8),
        behaviour_logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
    )
