"""Attention over many sequences at once, some with shared prefixes; skips scores between tokens that do not see each
other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlhf.models.blocks import SMALL_KEYS, Block, Blocks


def attends_in_blocks(model: PreTrainedModel) -> bool:
    """Whether the argument `blocks` of the model's forward pass reaches the attention of its layers."""
    return bool(model._supports_attention_backend) and model.config._attn_implementation == "sdpa"


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The model without its head: the part that ends with the last hidden states."""
    if model.base_model is not model:
        return model.base_model
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    return decoder


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    blocks: Blocks | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention with the signature that transformers expects: `query` `[R, heads, L, d]`, `key` and `value` with the
    same number of heads or fewer; returns `[R, L, heads, d]`. Without `blocks` transformers' own attention is used. A
    token sees the last `sliding_window` tokens of its sequence, itself included. Scores `s` become `softcap * tanh(s /
    softcap)` if the model caps them. `s_aux` `[heads]` are the scores of attention sinks, which take part in the
    softmax but have no value (arXiv 2309.17453)."""
    scores = AttentionScaling(scaling=scaling, cap=softcap, sinks=s_aux)
    if blocks is None and scores.plain:
        options |= {"scaling": scaling, "sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    if blocks is None:
        mask = _causal(query, sliding_window) if attention_mask is None else _added(attention_mask, query.dtype)
        return _folded(query, key, value, mask, scores).transpose(1, 2), None
    flat_query, flat_key, flat_value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    seen = blocks.within(sliding_window, query.dtype)
    parts = [_attend(block, flat_query, flat_key, flat_value, scores) for block in seen]
    return torch.cat(parts).index_select(0, blocks.order).view(*query.transpose(1, 2).shape[:3], -1), None


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


def _attend(block: Block, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScaling) -> Tensor:
    """The block's outputs `[S * Q, heads, d]`."""
    queries, keys, values = _rows(query, block.queries), _rows(key, block.keys), _rows(value, block.keys)
    groups = queries.shape[1] // keys.shape[1]
    if block.mask is None and scores.plain:
        keys, values = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (keys, values))
        attended = sdpa(queries, keys, values, is_causal=True, scale=scores.scaling)
    else:
        mask = _causal(queries) if block.mask is None else block.mask
        attended = _folded(queries, keys, values, mask, scores)
    return attended.transpose(1, 2).flatten(0, 1)


def _folded(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scores: AttentionScaling) -> Tensor:
    """Attention `[S, heads, Q, d]`. Query heads that share a key head are concatenated along the tokens, so that keys
    are read once and not repeated."""
    groups = queries.shape[1] // keys.shape[1]
    folded = queries.reshape(len(queries), keys.shape[1], -1, keys.shape[3])
    mask = mask.repeat(1, 1, groups, 1)
    if scores.plain and keys.shape[2] > SMALL_KEYS:
        attended = sdpa(folded, keys, values, attn_mask=mask, scale=scores.scaling)
    else:
        attended = _written(folded, keys, values, mask, scores)
    return attended.view(*queries.shape[:3], values.shape[3])


def _written(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, how: AttentionScaling) -> Tensor:
    """The same as explicit matrix products in float32: on a CPU this takes half the time when there are few scores."""
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


def _causal(queries: Tensor, window: int | None = None) -> Tensor:
    """The causal mask of one sequence per row, `[1, 1, Q, Q]`."""
    place = torch.arange(queries.shape[2], device=queries.device)
    back = place[:, None] - place
    seen = back >= 0 if window is None else (back >= 0) & (back < window)
    return _added(seen[None, None], queries.dtype)


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask; a boolean `mask` says which keys are visible."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def _rows(flat: Tensor, positions: Tensor) -> Tensor:
    """Gathers `flat` `[N, heads, d]` at `positions` `[S, T]`; returns `[S, heads, T, d]`."""
    return flat.index_select(0, positions.flatten()).view(*positions.shape, *flat.shape[1:]).transpose(1, 2)


AttentionInterface.register("sdpa", attention)
