"""The number of tokens whose logits the head computes at once. Without torch."""

from __future__ import annotations

LOGITS_AT_ONCE = 2**22
"""Largest number of logits in a chunk on a CPU (16 MiB in float32), recomputed in the backward pass."""
MEMORY_SHARE = 128
"""On a GPU the float32 logits of a chunk take this fraction of its memory: 640 MiB of 80 GiB, which is 1,100 tokens of
a vocabulary of 152,064. A chunk's backward pass holds about three times as much."""
MIN_CHUNK_TOKENS = 64
"""Smallest chunk in tokens: smaller chunks would mostly add up gradients of the head, each as large as the head."""


def tokens_at_once(vocabulary: int, memory: int | None) -> int:
    logits = LOGITS_AT_ONCE if memory is None else memory // MEMORY_SHARE // 4
    return max(MIN_CHUNK_TOKENS, logits // vocabulary)
