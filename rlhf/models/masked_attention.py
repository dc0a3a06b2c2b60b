"""Attention with a mask, for what kernels without one do not compute: capped scores, sinks, windows, short branches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

SMALL_KEYS = 256
"""With at most this many keys, the scores of a block are small enough to be stored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionScaling:
    """How a layer turns query-key products into attention scores."""

    scaling: float
    cap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether torch's own attention supports it."""
        return self.cap is None and self.sinks is None


def masked_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scores: AttentionScaling) -> Tensor:
    """Attention `[S, heads, Q, d]` with the additive `mask` `[S or 1, 1, Q, K]`. Query heads that share a key head are
    concatenated along the tokens, so that keys are read once and not repeated."""
    groups = queries.shape[1] // keys.shape[1]
    folded = queries.reshape(len(queries), keys.shape[1], -1, keys.shape[3])
    mask = mask.repeat(1, 1, groups, 1)
    if scores.plain and keys.shape[2] > SMALL_KEYS:
        attended = sdpa(folded, keys, values, attn_mask=mask, scale=scores.scaling)
    else:
        attended = _written(folded, keys, values, mask, scores)
    return attended.view(*queries.shape[:3], values.shape[3])


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the additive mask; a boolean `mask` says which keys are visible."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def _written(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, how: AttentionScaling) -> Tensor:
    """Return the same as matrix products in float32: on a CPU twice as fast if there are few scores."""
    dtype = queries.dtype
    queries, keys, values = queries.float(), keys.float(), values.float()
    scores = torch.matmul(queries, keys.transpose(-1, -2)).mul_(how.scaling)
    if how.cap is not None:
        scores = how.cap * torch.tanh(scores / how.cap)
    scores = scores.add_(mask)
    if how.sinks is None:
        return torch.matmul(torch.softmax(scores, -1), values).to(dtype)
    heads, each = keys.shape[1], scores.shape[2] * keys.shape[1] // len(how.sinks)
    sinks = how.sinks.float().view(heads, -1).repeat_interleave(each, 1)[None, :, :, None]
    weights = torch.softmax(torch.cat([scores, sinks.expand(len(scores), -1, -1, 1)], -1), -1)[..., :-1]
    return torch.matmul(weights, values).to(dtype)
