"""Attention over many sequences at once, some with shared prefixes, without scores between unrelated tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlhf.models.blocks import Block, Blocks
from rlhf.models.long_attention import long_attention, needs_masks
from rlhf.models.masked_attention import AttentionScaling, added, masked_attention
from rlhf.models.varlen import flash_takes


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Return the language model without its head: the part that ends with the last hidden states."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    # transformers returns a model itself whose `base_model_prefix` names no part of it (Llama 4).
    return decoder if decoder is not model else model.get_submodule("model")


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
        mask = _causal(query, sliding_window) if attention_mask is None else added(attention_mask, query.dtype)
        return masked_attention(query, key, value, mask, scores).transpose(1, 2), None
    flat_query, flat_key, flat_value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    if flash_takes(query) and not needs_masks(query, value, blocks.every, scores, sliding_window):
        attended = long_attention(flat_query, flat_key, flat_value, blocks.every, scores, sliding_window)
    else:
        seen = blocks.within(sliding_window)
        parts = [_attend(block, flat_query, flat_key, flat_value, scores) for block in seen]
        if blocks.long:
            parts.append(long_attention(flat_query, flat_key, flat_value, blocks.long, scores, sliding_window))
        attended = torch.cat(parts).index_select(0, blocks.order)
    return attended.view(*query.transpose(1, 2).shape[:3], -1), None


def _attend(block: Block, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScaling) -> Tensor:
    """Return the block's outputs `[S * Q, heads, d]`."""
    queries, keys, values = _rows(query, block.queries), _rows(key, block.keys), _rows(value, block.keys)
    groups = queries.shape[1] // keys.shape[1]
    if block.mask is None and scores.plain:
        keys, values = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (keys, values))
        attended = sdpa(queries, keys, values, is_causal=True, scale=scores.scaling)
    else:
        mask = _causal(queries) if block.mask is None else block.mask
        attended = masked_attention(queries, keys, values, mask, scores)
    return attended.transpose(1, 2).flatten(0, 1)


def _causal(queries: Tensor, window: int | None = None) -> Tensor:
    """Return the causal mask of one sequence per row, `[1, 1, Q, Q]`."""
    place = torch.arange(queries.shape[2], device=queries.device)
    back = place[:, None] - place
    seen = back >= 0 if window is None else (back >= 0) & (back < window)
    return added(seen[None, None], queries.dtype)


def _rows(flat: Tensor, positions: Tensor) -> Tensor:
    """Gathers `flat` `[N, heads, d]` at `positions` `[S, T]`; returns `[S, heads, T, d]`."""
    return flat.index_select(0, positions.flatten()).view(*positions.shape, *flat.shape[1:]).transpose(1, 2)


AttentionInterface.register("sdpa", attention)
