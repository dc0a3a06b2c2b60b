"""Attention masks of packed rows for models without block attention; they state completely which tokens see which."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.errors import ModelError

FULL, SLIDING = "full_attention", "sliding_attention"


def packed_masks(model: PreTrainedModel, position_ids: Tensor) -> Any:
    """Return the attention mask of rows whose sequences begin where `position_ids` `[R, L]` do: one mask, or one for
    each layer type by name, with the window of that type.

    Raises `ModelError` for unknown layer types.
    """
    config = model.config.get_text_config()
    settings = config.to_dict()
    window, kinds = settings.get("sliding_window"), set(settings.get("layer_types") or ())
    if unknown := sorted(kinds - {FULL, SLIDING}):
        raise ModelError(
            f"{type(model).__name__} has layers of {', '.join(unknown)}; masks of packed rows are known for "
            f"{FULL} and {SLIDING} only: this architecture cannot be trained here"
        )
    if SLIDING in kinds:
        return {kind: row_mask(position_ids, model.dtype, window if kind == SLIDING else None) for kind in kinds}
    return row_mask(position_ids, model.dtype, None if kinds else window)


def row_mask(position_ids: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """Return the additive mask `[R, 1, L, L]`: 0 where a token of `position_ids` `[R, L]` sees another, else the
    dtype's minimum.

    A run is a stretch of consecutive positions. A run that starts at 0 begins a sequence. A run that starts at p > 0 is
    another branch of the same sequence, and sees that sequence's first p tokens and itself. With a `window` a token
    sees itself and the `window - 1` positions before it.
    """
    index = torch.arange(position_ids.shape[1], device=position_ids.device).expand_as(position_ids)
    breaks = torch.ones_like(position_ids, dtype=torch.bool)
    breaks[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    starts = position_ids - (index - torch.where(breaks, index, 0).cummax(1).values)
    runs, sequences = breaks.cumsum(1), (breaks & (position_ids == 0)).cumsum(1)
    same_run = runs[:, :, None] == runs[:, None]
    shared = (sequences[:, :, None] == sequences[:, None]) & (position_ids[:, None] < starts[:, :, None])
    seen = (same_run | shared) & (index[:, None] <= index[:, :, None])
    if window is not None:
        seen &= position_ids[:, :, None] - position_ids[:, None] < window
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill(~seen, torch.finfo(dtype).min)[:, None]
