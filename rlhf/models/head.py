"""From hidden states to log-probs and entropies, holding no more than a chunk of the vocabulary's logits at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 2**22
"""Logits of a chunk (16 MiB in float32). All tokens go in chunks of so many, recomputed in the backward pass, when
there are more logits than this."""
MIN_CHUNK_TOKENS = 64
"""Chunks of fewer tokens would spend their time on adding up the head's gradients, each as large as the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BehindHead:
    """What a model makes of its head's numbers: `logits = cap * tanh(scale * numbers / cap)`, without a `cap` the
    scaled numbers (Gemma 2, arXiv 2408.00118; Granite and Cohere scale)."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, numbers: Tensor) -> Tensor:
        logits = numbers if self.scale == 1 else numbers * self.scale
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def behind_head(config: Any) -> BehindHead:
    """That of the model with this configuration, by the names that configurations use."""
    settings = config.get_text_config().to_dict()
    return BehindHead(
        scale=(settings.get("logit_scale") or 1.0) / (settings.get("logits_scaling") or 1.0),
        cap=settings.get("final_logit_softcapping"),
    )


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
    """`chosen_logprobs` of `head(hidden)` for hidden states `[A, H]`, without the logits `[A, V]` of all tokens.

    The head is called in the forward pass and in the recomputation, as the module that it is, so that whoever shards or
    wraps it (ZeRO-3, LoRA) has its hooks called. Under ZeRO-3 such a call is a collective: `most`, the largest A of all
    ranks, has them call it equally often.
    """
    size = max(MIN_CHUNK_TOKENS, LOGITS_AT_ONCE // vocabulary)
    chunks = -(-max(most, len(hidden)) // size)
    if chunks <= 1:
        return chosen_logprobs(head(hidden), ids, temperature, entropy_gradient=entropy_gradient)
    parts = [
        checkpoint(_of_chunk, head, *chunk, temperature, entropy_gradient, use_reentrant=False)
        for chunk in zip(torch.tensor_split(hidden, chunks), torch.tensor_split(ids, chunks), strict=True)
    ]
    return torch.cat([logprobs for logprobs, _ in parts]), torch.cat([entropies for _, entropies in parts])


def chosen_logprobs(
    logits: Tensor, ids: Tensor, temperature: float = 1.0, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probs of `ids` `int64 [A]` under softmax(logits `[A, V]` / temperature), and the entropies of the
    distributions in nats: both `float32 [A]`, computed in float32 whatever the logits are in. The entropies are
    detached unless `entropy_gradient`."""
    logprobs, entropies = _Chosen.apply(  # type: ignore[no-untyped-call]
        logits, ids.long(), temperature, entropy_gradient
    )
    return logprobs, entropies if entropy_gradient else entropies.detach()


def _of_chunk(
    head: Callable[[Tensor], Tensor], hidden: Tensor, ids: Tensor, temperature: float, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    return chosen_logprobs(head(hidden), ids, temperature, entropy_gradient=entropy_gradient)


class _Chosen(torch.autograd.Function):
    """Keeps one tensor of the size of the logits for the backward pass, the log-softmax, and makes one more there."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, ids: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
        log_softmax = torch.log_softmax(scaled, dim=-1)
        del scaled
        entropies = -torch.linalg.vecdot(log_softmax.exp(), log_softmax)
        ctx.save_for_backward(log_softmax, ids, entropies)
        ctx.temperature, ctx.dtype, ctx.entropy_gradient = temperature, logits.dtype, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return log_softmax.gather(-1, ids[:, None])[:, 0], entropies

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
