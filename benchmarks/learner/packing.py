"""Packing: how much of what is computed is useful, its speed against padding in arrival order, and the price of
`trainer.packing=never`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.end_to_end.workload import reply_tokens
from benchmarks.learner.clock import fastest
from benchmarks.learner.figures import Figure
from benchmarks.learner.model import PROMPT_TOKENS, SAMPLES, batch, loss, policy
from rlhf.models.policy import SequencesAlone
from rlhf.trainer.batching.batch import Batch, MicroBatch, build_minibatches
from rlhf.types import Segment

TOKENS_PER_MICROBATCH = 4096
TIMED_GROUPS, LONG_PROMPT = 4, 512


def figures(rounds: int) -> list[Figure]:
    replies = reply_tokens("long_tail")
    shares = [
        Figure(name=name, value=useful_share(batch(replies, shared_prompts=shared)), bound=0.95, how="512 replies")
        for name, shared in (("useful_share", False), ("useful_share_shared_prompts", True))
    ]
    timed = replies[: TIMED_GROUPS * SAMPLES]
    return [*shares, speed(timed, rounds), *(price(timed, tokens, rounds) for tokens in (PROMPT_TOKENS, LONG_PROMPT))]


def useful_share(whole: Batch) -> float:
    """Different tokens, a prompt that samples share counted once, over all that two ranks compute. A prompt computed
    twice is waste, like padding."""
    contexts = {context.tobytes(): len(context) for context in map(prompt_of, whole.sequences)}
    useful = sum(int(sequence.action_mask.sum()) for sequence in whole.sequences) + sum(contexts.values())
    return useful / sum(micro.tokens for micro in microbatches(whole, ranks=2))


def prompt_of(sequence: Segment) -> NDArray[np.int32]:
    return sequence.token_ids[~sequence.action_mask]


def microbatches(whole: Batch, ranks: int = 1, packed: bool = True) -> list[MicroBatch]:
    """The micro-batches of all ranks, as the learner cuts them, also with a sequence a row."""
    per_rank = build_minibatches(
        whole, minibatches=1, ranks=ranks, tokens_per_microbatch=TOKENS_PER_MICROBATCH, packed=packed
    )
    return [micro for (minibatch,) in per_rank for micro in minibatch]


def padded(whole: Batch) -> list[MicroBatch]:
    """A sequence a row, in arrival order, filled up to the longest of its micro-batch."""
    parts: list[list[int]] = [[]]
    for index in range(len(whole.sequences)):
        longest = max(len(whole.sequences[i].token_ids) for i in [*parts[-1], index])
        if parts[-1] and longest * (len(parts[-1]) + 1) > TOKENS_PER_MICROBATCH:
            parts.append([])
        parts[-1].append(index)
    return [_rows(whole, part) for part in parts]


def speed(replies: Sequence[int], rounds: int) -> Figure:
    model, whole = policy(torch.float32), batch(replies)
    ours, theirs = microbatches(whole), padded(whole)
    packed_seconds, padded_seconds = fastest(rounds, lambda: _train(model, ours), lambda: _train(model, theirs))
    tokens = sum(replies)
    how = f"{tokens / packed_seconds:.0f} against {tokens / padded_seconds:.0f} reply tokens/s, {len(replies)} replies"
    return Figure(name="packed_over_padded", value=padded_seconds / packed_seconds, bound=2.0, how=how)


def price(replies: Sequence[int], prompt_tokens: int, rounds: int) -> Figure:
    """The time of an update with a sequence a row over that of packed rows; a group shares its prompt."""
    whole, alone = batch(replies, prompt_tokens=prompt_tokens), SequencesAlone("the price is measured")
    together, apart = policy(torch.float32), policy(torch.float32, alone)
    packed_seconds, alone_seconds = fastest(
        rounds,
        partial(_train, together, microbatches(whole)),
        partial(_train, apart, microbatches(whole, packed=False)),
    )
    return Figure(
        name=f"never_over_packed_prompt_{prompt_tokens}",
        value=alone_seconds / packed_seconds,
        bound=SAMPLES,
        at_most=True,
        how=f"{alone_seconds:.1f} against {packed_seconds:.1f} s, {SAMPLES} samples a prompt",
    )


def _train(model: torch.nn.Module, microbatches: Sequence[MicroBatch]) -> None:
    for micro in microbatches:
        loss(model, micro).backward()


def _rows(whole: Batch, part: Sequence[int]) -> MicroBatch:
    sequences = [whole.sequences[index] for index in part]
    length = max(len(sequence.token_ids) for sequence in sequences)
    token_ids = np.stack([np.pad(sequence.token_ids, (0, length - len(sequence.token_ids))) for sequence in sequences])
    actions = [np.flatnonzero(sequence.action_mask) for sequence in sequences]
    targets = np.concatenate([row * length + own for row, own in enumerate(actions)])
    places = np.concatenate(
        [whole.starts[index] + np.arange(len(own)) for index, own in zip(part, actions, strict=True)]
    )
    return MicroBatch(
        token_ids=token_ids,
        position_ids=np.tile(np.arange(length, dtype=np.int32), (len(part), 1)),
        sources=targets - 1,
        targets=targets,
        places=places,
        sequences=np.repeat(np.arange(len(part)), [len(own) for own in actions]),
        ends=np.array([row * length + len(sequence.token_ids) - 1 for row, sequence in enumerate(sequences)]),
        samples=whole.sequence_samples[list(part)],
        **whole.columns_at(places),
    )
