"""The policy as the learner computes it: packed rows in, log-probs of the ACTION tokens out."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

LOGITS_AT_ONCE = 2**25
"""Logits held at a time (128 MiB in float32): more tokens than that go in chunks, recomputed in the backward pass."""


class Policy(nn.Module):
    """A causal LM wrapped so that vocabulary work is done only where a log-prob is wanted.

    The hidden states are selected before the head, inside `forward`, so that ZeRO-3 gathers the head for it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, token_ids: Tensor, position_ids: Tensor, sources: Tensor, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, both `float32 [A]`, of the tokens at flat positions `targets` `int64 [A]` of
        `token_ids` `[R, L]`, given what precedes them in their sequence, which ends at the flat position `sources`.

        Rows hold several sequences; `position_ids` restarts at 0 in each. That, with no mask and no cache, is what
        tells transformers where sequences end: a mask of ones or a cache would silently join them. Where sequences
        share their beginning there is a mask, see `branch_mask`.
        """
        hidden = self.model.base_model(
            input_ids=token_ids,
            position_ids=position_ids,
            attention_mask=branch_mask(position_ids, self.model.dtype),
            use_cache=False,
        ).last_hidden_state
        chosen = hidden.flatten(0, 1)[sources]
        # Without targets this is empty but still hangs on every weight: a padding micro-batch runs the same backward
        # pass as any other, because ranks must meet in every collective.
        return self._head(chosen, token_ids.flatten()[targets], temperature)

    def _head(self, hidden: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        head: nn.Module = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        size = max(1, LOGITS_AT_ONCE // self.model.config.vocab_size)
        if len(hidden) <= size:
            return chosen_logprobs(head(hidden), ids, temperature)
        chunks = zip(torch.split(hidden, size), torch.split(ids, size), strict=True)
        parts = [checkpoint(_head_logprobs, head, *chunk, temperature, use_reentrant=False) for chunk in chunks]
        return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


def branch_mask(position_ids: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What is added to attention scores, `[R, 1, L, L]`: 0 where a token of `position_ids` `[R, L]` may look, the
    smallest number elsewhere. `None` when no sequences share their beginning.

    A run is a stretch of rising positions. One that starts at 0 begins a sequence; one that starts at p > 0 is another
    branch of the same sequence, which sees that sequence's first p tokens and itself.
    """
    index = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    breaks = torch.ones_like(position_ids, dtype=torch.bool)
    breaks[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    starts = position_ids - (index - torch.where(breaks, index, 0).cummax(1).values)
    if not bool(starts.any()):
        return None
    runs, sequences = breaks.cumsum(1), (breaks & (position_ids == 0)).cumsum(1)
    same_run = runs[:, :, None] == runs[:, None]
    shared = (sequences[:, :, None] == sequences[:, None]) & (position_ids[:, None] < starts[:, :, None])
    seen = (same_run | shared) & (index[:, None] <= index[:, :, None])
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[:, None]


def chosen_logprobs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probs of `ids` `int64 [A]` under softmax(logits `[A, V]` / temperature), and the (detached) entropies of the
    distributions in nats: both `float32 [A]`, computed in float32 whatever the logits are in."""
    scaled = logits.float() / temperature
    normalizer = torch.logsumexp(scaled, dim=-1)
    logprobs = scaled.gather(-1, ids.long()[:, None])[:, 0] - normalizer
    with torch.no_grad():
        expected = (torch.softmax(scaled, dim=-1) * scaled).sum(-1)
        return logprobs, normalizer.detach() - expected


def _head_logprobs(head: nn.Module, hidden: Tensor, ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    return chosen_logprobs(head(hidden), ids, temperature)
