"""Attention of many sequences at once, some of which share their beginning, without computing what nobody sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from rlhf.models.blocks import SMALL_KEYS, Block, Blocks


def attends_in_blocks(model: PreTrainedModel) -> bool:
    """Whether `blocks`, given to the model's forward pass, reach the attention of its layers."""
    return bool(model._supports_attention_backend) and model.config._attn_implementation == "sdpa"


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
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: `query` `[R, heads, L, d]`, `key` and `value` with as many heads or fewer;
    returns `[R, L, heads, d]`. Without `blocks` it is transformers' own. A token sees the last `sliding_window` tokens
    of its sequence, itself included."""
    if blocks is None:
        options |= {"scaling": scaling, "sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    flat_query, flat_key, flat_value = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    seen = blocks.within(sliding_window, query.dtype)
    parts = [_attend(block, flat_query, flat_key, flat_value, scaling) for block in seen]
    return torch.cat(parts).index_select(0, blocks.order).view(query.transpose(1, 2).shape), None


def _attend(block: Block, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """The block's outputs `[S * Q, heads, d]`."""
    queries, keys, values = _rows(query, block.queries), _rows(key, block.keys), _rows(value, block.keys)
    groups = queries.shape[1] // keys.shape[1]
    if block.mask is None:
        keys, values = (x if groups == 1 else x.repeat_interleave(groups, 1) for x in (keys, values))
        attended = sdpa(queries, keys, values, is_causal=True, scale=scaling)
    else:
        # Query heads that share a key head go one after the other along the tokens: keys are read once, not repeated.
        folded = queries.reshape(len(queries), keys.shape[1], -1, keys.shape[3])
        mask = block.mask.repeat(1, 1, groups, 1)
        attend = _small if keys.shape[2] <= SMALL_KEYS else _masked
        attended = attend(folded, keys, values, mask, scaling).view_as(queries)
    return attended.transpose(1, 2).flatten(0, 1)


def _masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    return sdpa(queries, keys, values, attn_mask=mask, scale=scaling)


def _small(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """The same, written out, in float32: on a CPU in half the time where scores are few."""
    dtype = queries.dtype
    queries, keys, values = queries.float(), keys.float(), values.float()
    scores = torch.matmul(queries, keys.transpose(-1, -2)).mul_(scaling).add_(mask)
    return torch.matmul(torch.softmax(scores, -1), values).to(dtype)


def _rows(flat: Tensor, positions: Tensor) -> Tensor:
    """`flat` `[N, heads, d]` at `positions` `[S, T]`, as `[S, heads, T, d]`."""
    return flat.index_select(0, positions.flatten()).view(*positions.shape, *flat.shape[1:]).transpose(1, 2)


AttentionInterface.register("sdpa", attention)
