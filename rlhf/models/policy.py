"""The policy as the learner computes it: packed rows in, log-probs of ACTION tokens out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.images import RowImages
from rlhf.models.attention import decoder_of
from rlhf.models.blocks import blocks_of
from rlhf.models.head import HeadPass, behind_head
from rlhf.models.sequence_rows import sequence_rows
from rlhf.models.transformers_internals import attends_in_blocks
from rlhf.models.vision import Vision, apart, image_arguments


class RowForward(Protocol):
    """How a process computes packed rows: all at once, each sequence alone, or its share (`shared_rows`)."""

    @property
    def why_alone(self) -> str:
        """Why each sequence is alone; empty if they are packed."""

    def hidden(
        self,
        model: PreTrainedModel,
        token_ids: Tensor,
        position_ids: Tensor,
        places: Tensor,
        images: RowImages | None = None,
    ) -> tuple[Tensor | slice, Tensor]:
        """Return which of the flat `places` `int64 [A]` are this process's, and the hidden states there, `[own, H]`."""

    def forget_images(self) -> None:
        """Forget what a frozen tower saw."""

    def joined(self, own: Tensor, held: Tensor | slice) -> Tensor:
        """Combine the values `own` `[own]` of this process's places into the values of all places: `[A]`."""


class WholeRows:
    """Computes whole rows in this process alone."""

    why_alone = ""

    def __init__(self, vision: Vision | None = None) -> None:
        self.vision = vision

    def hidden(
        self,
        model: PreTrainedModel,
        token_ids: Tensor,
        position_ids: Tensor,
        places: Tensor,
        images: RowImages | None = None,
    ) -> tuple[slice, Tensor]:
        tokens = self._tokens(model, token_ids, position_ids, images)
        return slice(None), hidden_states(model, tokens, position_ids).flatten(0, 1)[places]

    def _tokens(
        self, model: PreTrainedModel, token_ids: Tensor, position_ids: Tensor | None, images: RowImages | None
    ) -> dict[str, Any]:
        """Return the decoder's arguments for the tokens, and for their positions where images change these."""
        if images is None:
            return {"input_ids": token_ids}
        assert self.vision is not None, "runs without model.tower refuse images"
        return image_arguments(model, token_ids, position_ids, images, self.vision)

    def forget_images(self) -> None:
        if self.vision:
            self.vision.forget()

    def joined(self, own: Tensor, held: Tensor | slice) -> Tensor:
        return own


class SequencesAlone(WholeRows):
    """Computes every sequence in its own row, for models that packed rows would change, or on demand."""

    def __init__(self, why_alone: str, vision: Vision | None = None) -> None:
        super().__init__(vision)
        self.why_alone = why_alone

    def hidden(
        self,
        model: PreTrainedModel,
        token_ids: Tensor,
        position_ids: Tensor,
        places: Tensor,
        images: RowImages | None = None,
    ) -> tuple[slice, Tensor]:
        rows = sequence_rows(position_ids)
        tokens = self._tokens(model, rows.apart(token_ids), None, None if images is None else apart(rows, images))
        # No mask, and no positions but those of images: the tokens' order says all.
        hidden: Tensor = decoder_of(model)(**tokens, use_cache=False).last_hidden_state
        return slice(None), hidden.flatten(0, 1)[rows.places[places]]


class PolicyModel(nn.Module):
    """A causal LM, wrapped so that the head is computed only for tokens whose log-prob is needed: their hidden states
    are selected before it, inside `forward`. `head_pass` computes what needs the head's weights."""

    def __init__(self, model: PreTrainedModel, rows: RowForward | None = None) -> None:
        super().__init__()
        self.model, self.rows, self.head_pass = model, rows or WholeRows(), HeadPass()

    def forward(
        self,
        token_ids: Tensor,
        position_ids: Tensor,
        sources: Tensor,
        targets: Tensor,
        temperature: float,
        *,
        entropy_gradient: bool = False,
        most: int = 0,
        images: RowImages | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies, both `float32 [A]`, of the tokens at flat positions `targets` `int64 [A]` of
        `token_ids` `[R, L]`. Each is conditioned on the preceding tokens of its sequence, the last of which is at flat
        position `sources`. `most` is the largest A of the ranks that compute at the same time."""
        held, hidden = self.rows.hidden(self.model, token_ids, position_ids, sources, images)
        # Without targets the result is empty but depends on every weight: a padding micro-batch runs the same backward
        # pass as any other, because all ranks must take part in every collective.
        logprobs, entropies = self.head_pass(
            hidden,
            head=self._logits,
            ids=token_ids.flatten()[targets[held]],
            temperature=temperature,
            vocabulary=self.model.config.get_text_config().vocab_size,
            entropy_gradient=entropy_gradient,
            most=most,
        )
        return self.rows.joined(logprobs, held), self.rows.joined(entropies, held)

    def _logits(self, hidden: Tensor) -> Tensor:
        """`logits_of` within `head_pass`, which has the weights of a linear head: it is called without its own hooks,
        in which ZeRO-3 would gather it chunk by chunk. Another head, with adapters for instance, needs them."""
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        return behind_head(self.model.config)(head.forward(hidden) if type(head) is nn.Linear else head(hidden))


def logits_of(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return the model's logits `[A, V]` for its last hidden states `[A, H]`."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    return behind_head(model.config)(head(hidden))


def hidden_states(model: PreTrainedModel, tokens: Mapping[str, Any], position_ids: Tensor) -> Tensor:
    """Return the last hidden states `[R, L, H]` of rows, whose `tokens` are `input_ids` `[R, L]` or `image_arguments`.
    `position_ids` restarts at 0 in each sequence of a row, and continues from p > 0 where another branch of
    the same sequence begins. A mask of ones, a cache, or a missing mask in a model that ignores positions would
    silently join the sequences."""
    given = {"position_ids": position_ids, "use_cache": False, **row_arguments(model, position_ids), **tokens}
    output = decoder_of(model)(**given)
    hidden: Tensor = output.last_hidden_state
    return hidden


def row_arguments(model: PreTrainedModel, position_ids: Tensor) -> dict[str, Any]:
    """Describe the sequences in the rows of `position_ids` `[R, L]` to `model`: by a mask, or by blocks."""
    if attends_in_blocks(model):
        # Not used. If the blocks were lost on the way, the NaNs would spread to every result.
        mask = torch.full((1, 1, 1, 1), torch.nan, device=position_ids.device)
        return {"attention_mask": mask, "blocks": blocks_of(position_ids, model.dtype)}
    return {"attention_mask": packed_masks(model, position_ids)}


FULL, SLIDING = "full_attention", "sliding_attention"


def packed_masks(model: PreTrainedModel, position_ids: Tensor) -> Any:
    """Return the attention mask of rows of `position_ids` `[R, L]`, or one for each layer type by name."""
    config = model.config.get_text_config()
    settings = config.to_dict()
    window, kinds = settings.get("sliding_window"), set(settings.get("layer_types") or ())
    if SLIDING in kinds:
        return {kind: row_mask(position_ids, model.dtype, window if kind == SLIDING else None) for kind in kinds}
    return row_mask(position_ids, model.dtype, None if kinds else window)


def row_mask(position_ids: Tensor, dtype: torch.dtype, window: int | None = None) -> Tensor:
    """Return the additive mask `[R, 1, L, L]`: 0 where a token of `position_ids` `[R, L]` sees another, else the
    minimum. Runs are as in `runs_of`. With a `window` a token sees itself and `window - 1` positions before it."""
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
