"""Sequence parallelism (Ulysses, arXiv 2309.14509): several ranks share rows of tokens, each computes some columns. For
attention, ranks exchange columns for heads, and back. Results for selected tokens are shared at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel

from rlhf.errors import ModelError
from rlhf.images import RowImages
from rlhf.models.attention import attention, decoder_of
from rlhf.models.blocks import blocks_of
from rlhf.models.stateful_layers import stateful_layers
from rlhf.models.transformers_internals import attends_in_blocks

NAME = "rlhf_shared"
"""The name under which models use `shared_attention`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Team:
    """The ranks that share rows (`rlhf.models.policy.RowForward`): `size` ranks, this process is number `rank`. All get
    the same calls. `exchange` is DeepSpeed's attention over all columns."""

    group: dist.ProcessGroup
    size: int
    rank: int
    exchange: nn.Module
    why_alone: str = ""

    def hidden(
        self,
        model: PreTrainedModel,
        token_ids: Tensor,
        position_ids: Tensor,
        places: Tensor,
        images: RowImages | None = None,
    ) -> tuple[Tensor, Tensor]:
        if images is not None:
            raise ModelError(f"trainer.deepspeed.sequence_parallel is {self.size}, but rows with images need 1")
        shard = Shard(length=token_ids.shape[1], size=self.size, rank=self.rank)
        hidden = decoder_of(model)(
            input_ids=shard.of(token_ids),
            position_ids=shard.of(position_ids),
            # Not used: see `rlhf.models.policy.hidden_states`.
            attention_mask=torch.full((1, 1, 1, 1), torch.nan, device=token_ids.device),
            use_cache=False,
            team=self,
            blocks=blocks_of(shard.filled(position_ids), model.dtype),
        ).last_hidden_state
        held = shard.holds(places)
        return held, hidden.flatten(0, 1)[shard.here(places[held])]

    def forget_images(self) -> None:
        """Ranks that share rows see no images."""

    def joined(self, own: Tensor, held: Tensor | slice) -> Tensor:
        joined: Tensor = _Joined.apply(own, held, self.group)  # type: ignore[no-untyped-call]
        return joined

    def take(self, model: PreTrainedModel) -> None:
        """Let the model's layers use shared attention. Raises `ModelError` for a model that does not support it."""
        if stateful_layers(model):
            raise ModelError(
                f"trainer.deepspeed.sequence_parallel is {self.size}, but layers of {type(model).__name__} carry a "
                "state along the row, of which a rank has a part only; use 1"
            )
        if not attends_in_blocks(model):
            raise ModelError(
                f"trainer.deepspeed.sequence_parallel is {self.size}, but the attention of {type(model).__name__} "
                "cannot be shared: it does not go through transformers' sdpa"
            )
        config = model.config.get_text_config()
        heads, shared = config.num_attention_heads, config.num_key_value_heads
        if heads % self.size or (shared % self.size and self.size % shared):
            raise ModelError(
                f"trainer.deepspeed.sequence_parallel is {self.size}, but the model has {heads} attention heads and "
                f"{shared} key/value heads: ranks compute whole heads, so it must divide the first number, and divide "
                "the second or be divided by it"
            )
        model.set_attn_implementation(NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One rank's columns of rows of `length` tokens: `width` columns, padded at the end of the last rank's."""

    length: int
    size: int
    rank: int

    @property
    def width(self) -> int:
        return -(-self.length // self.size)

    def filled(self, rows: Tensor) -> Tensor:
        """Pad `[R, length]` with zeros to `[R, size * width]`. As positions, zeros are sequences of one token."""
        return pad(rows, (0, self.size * self.width - self.length))

    def of(self, rows: Tensor) -> Tensor:
        """Return this rank's columns `[R, width]` of `[R, length]`."""
        return self.filled(rows)[:, self.rank * self.width : (self.rank + 1) * self.width]

    def holds(self, places: Tensor) -> Tensor:
        """Mark the flat `places` `[A]` of the rows that are in this rank's columns: `bool [A]`."""
        return places % self.length // self.width == self.rank

    def here(self, places: Tensor) -> Tensor:
        """Convert flat places of the rows, which this rank holds, to flat places of its columns."""
        return places // self.length * self.width + places % self.length - self.rank * self.width


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    team: Team,
    s_aux: Tensor | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Attention with transformers' signature for this rank's columns: `query` `[R, heads, width, d]`, `key`, `value`
    with as many heads or fewer; returns `[R, width, heads, d]`. Raises `ModelError` for attention sinks."""
    if s_aux is not None:
        raise ModelError(
            f"trainer.deepspeed.sequence_parallel is {team.size}, but the attention of this model has sinks, "
            "which are not exchanged with heads; use 1"
        )
    # With fewer key/value heads than ranks, several ranks get the same head.
    copies = max(team.size // key.shape[1], 1)
    key, value = (x if copies == 1 else x.repeat_interleave(copies, 1) for x in (key, value))
    columns = (x.transpose(1, 2) for x in (query, key, value))
    attended: Tensor = team.exchange(*columns, 0, module=module, attention_mask=attention_mask, **arguments)
    return attended, None


def all_columns(query: Tensor, key: Tensor, value: Tensor, *, module: nn.Module, **arguments: Any) -> Tensor:
    """Attention of this rank's heads over all columns: all `[R, L, heads, d]`."""
    heads = (x.transpose(1, 2) for x in (query, key, value))
    return attention(module, *heads, **arguments)[0]


class _Joined(torch.autograd.Function):
    """Joins values of all ranks, which compute the same loss: the backward pass does not sum over ranks."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, held: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(held)
        joined = own.new_zeros(len(held)).masked_scatter_(held, own)
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (held,) = ctx.saved_tensors
        return gradient[held], None, None


AttentionInterface.register(NAME, shared_attention)
