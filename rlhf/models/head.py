"""Computes log-probs and entropies from hidden states, with the logits of at most one chunk in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rlhf.models.head_chunks import tokens_at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindHead:
    """What a model does with its head's output: `logits = cap * tanh(scale * output / cap)`, or `scale * output`
    without a `cap` (Gemma 2, arXiv 2408.00118, caps; Granite and Cohere scale)."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, numbers: Tensor) -> Tensor:
        logits = numbers if self.scale == 1 else numbers * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


SCALES, DIVISORS = ("logit_scale",), ("logits_scaling", "logits_mup_width_multiplier")
CAP = "final_logit_softcapping"
"""Names in configurations."""


def behind_head(config: Any) -> BehindHead:
    """Return the scale and cap of the model with this configuration, some of which are computed properties of it."""
    text = config.get_text_config()
    known = {name: getattr(text, name) for name in (*SCALES, *DIVISORS, CAP) if hasattr(text, name)}
    up, down = (math.prod(known.get(name) or 1.0 for name in names) for names in (SCALES, DIVISORS))
    return BehindHead(scale=up / down, cap=known.get(CAP))


class HeadPass(nn.Module):
    """`head_logprobs` as a module without parameters. ZeRO-3 gathers and releases weights around a module: a
    head whose weights belong to this one (`zero.build_engine`) is gathered once for all chunks of a pass."""

    def forward(self, hidden: Tensor, *, head: Callable[[Tensor], Tensor], **options: Any) -> tuple[Tensor, Tensor]:
        return head_logprobs(head, hidden, **options)


def head_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    ids: Tensor,
    temperature: float = 1.0,
    *,
    vocabulary: int,
    entropy_gradient: bool = False,
    most: int = 0,
) -> tuple[Tensor, Tensor]:
    """`chosen_logprobs` of `head(hidden)` for hidden states `[A, H]`, without storing the logits `[A, V]` of all
    tokens. `head` is called for every chunk, and again in the backward pass. Where a call is a collective, `most`, the
    largest A of all ranks, makes all ranks call it equally often."""

    def of_chunk(hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        return chosen_logprobs(head(hidden), ids, temperature, entropy_gradient=entropy_gradient)

    memory = torch.cuda.get_device_properties(hidden.device).total_memory if hidden.is_cuda else None
    chunks = -(-max(most, len(hidden)) // tokens_at_once(vocabulary, memory))
    if chunks <= 1:
        return of_chunk(hidden, ids)
    pieces = zip(torch.tensor_split(hidden, chunks), torch.tensor_split(ids, chunks), strict=True)
    parts = [checkpoint(of_chunk, *piece, use_reentrant=False) for piece in pieces]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


def chosen_logprobs(
    logits: Tensor, ids: Tensor, temperature: float = 1.0, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probs of `ids` `int64 [A]` under softmax(logits `[A, V]` / temperature), and the entropies in nats, detached
    unless `entropy_gradient`: both `float32 [A]`, computed in float32."""
    logprobs, entropies = _Chosen.apply(  # type: ignore[no-untyped-call]
        logits, ids.long(), temperature, entropy_gradient
    )
    return logprobs, entropies if entropy_gradient else entropies.detach()


LEAST = -200.0
"""Log-probs below are counted as this one: with -inf, 0 times -inf would be NaN in the entropy."""


class _Chosen(torch.autograd.Function):
    """Stores the log-softmax for the backward pass, which makes one more tensor of its size."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
        log_softmax = torch.log_softmax(scaled, dim=-1)
        del scaled
        logprobs = log_softmax.gather(-1, ids[:, None])[:, 0]
        log_softmax.clamp_(min=LEAST)
        entropies = -torch.linalg.vecdot(log_softmax.exp(), log_softmax)
        ctx.save_for_backward(log_softmax, ids, entropies)
        ctx.temperature, ctx.dtype, ctx.entropy_gradient = temperature, logits.dtype, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_logprobs: Tensor, of_entropies: Tensor) -> tuple[Tensor | None, ...]:
        """d logprob / d z = onehot - p and d entropy / d z = -p (log p + entropy), for z = logits / temperature."""
        log_softmax, ids, entropies = ctx.saved_tensors
        scale = (of_logprobs / ctx.temperature)[:, None]
        gradient = log_softmax.exp()
        if ctx.entropy_gradient:
            of_entropies = (of_entropies / ctx.temperature)[:, None]
            gradient *= -scale - of_entropies * (log_softmax + entropies[:, None])
        else:
            gradient *= -scale
        gradient.scatter_add_(-1, ids[:, None], scale)
        return gradient.to(ctx.dtype), None, None, None
