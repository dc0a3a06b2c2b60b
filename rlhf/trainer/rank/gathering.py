"""Weights that ZeRO-3 holds in shards, whole for a while. Collective: all ranks gather the same ones, in one order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed

from rlhf.models.streamed import partitioned
from rlhf.trainer.rank.accelerator import deepspeed_module


def gathered(weights: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """Inside, `weights` are whole on every rank; changes are lost where they are shards."""
    if not any(partitioned(weight) for weight in weights):
        return nullcontext()
    gather: AbstractContextManager[Any] = deepspeed_module().zero.GatheredParameters(list(weights))
    return gather


def gathered_to_read(weights: Sequence[Tensor], only: int | None = None) -> AbstractContextManager[Any]:
    """As `gathered`, for who changes nothing and runs no module inside: every rank, or `only` one, and then the others
    may have nothing. On a CPU the shards go right to where they belong, where DeepSpeed's gathering and gloo's copy
    everything thrice more; a single rank's are read where they are."""
    held = list({id(weight): weight for weight in weights if _is_away(weight)}.values())
    return _in_place(held, only) if held and all(map(_is_plain, held)) else gathered(weights)


@contextmanager
def _in_place(weights: Sequence[Any], only: int | None) -> Iterator[None]:
    moving: list[distributed.Work] = []
    whole = [_whole(weight, moving) if only is None else _whole_on(only, weight, moving) for weight in weights]
    for work in moving:
        work.wait()
    try:
        for weight, elements in zip(weights, whole, strict=True):
            if elements is not None:
                weight.data = elements[: weight.ds_numel].view(weight.ds_shape)
        yield
    finally:
        for weight in weights:
            weight.data = torch.empty(0, dtype=weight.dtype)


def _whole(weight: Any, moving: list[distributed.Work]) -> Tensor:
    """All shards of a weight in a row, the last one padded, when what it adds to `moving` has ended."""
    ranks = distributed.get_process_group_ranks(weight.ds_process_group)
    if len(ranks) == 1:
        return _shard(weight)
    whole, parts = _parts(weight, ranks)
    for rank, part in zip(ranks, parts, strict=True):
        moving.append(distributed.broadcast(part, rank, group=weight.ds_process_group, async_op=True))
    return whole


def _whole_on(reader: int, weight: Any, moving: list[distributed.Work]) -> Tensor | None:
    """As `_whole`, on the rank `reader`; None on others."""
    ranks, own = distributed.get_process_group_ranks(weight.ds_process_group), distributed.get_rank()
    if own != reader:
        if reader in ranks and (sending := distributed.isend(_shard(weight), reader, group=weight.ds_process_group)):
            moving.append(sending)
        return None
    if len(ranks) == 1:
        return _shard(weight)
    whole, parts = _parts(weight, ranks)
    for rank, part in zip(ranks, parts, strict=True):
        if rank != own and (coming := distributed.irecv(part, rank, group=weight.ds_process_group)):
            moving.append(coming)
    return whole


def _parts(weight: Any, ranks: Sequence[int]) -> tuple[Tensor, Sequence[Tensor]]:
    """Memory for all shards in a row, and its parts, of which this rank's is filled."""
    shard = _shard(weight)
    whole = torch.empty(len(ranks) * shard.numel(), dtype=shard.dtype)
    parts = torch.split(whole, shard.numel())
    parts[ranks.index(distributed.get_rank())].copy_(shard)
    return whole, parts


def _shard(weight: Any) -> Tensor:
    shard: Tensor = weight.ds_tensor.detach()
    return shard


def _is_away(weight: Any) -> bool:
    return partitioned(weight) and weight.ds_status.name != "AVAILABLE"


def _is_plain(weight: Any) -> bool:
    """Whether the shard lies in the CPU's memory as it is: not on a disk, and not quantised."""
    shard = weight.ds_tensor
    return bool(
        weight.device.type == shard.device.type == "cpu"
        and shard.dtype == weight.dtype
        and shard.status.name == "AVAILABLE"
        and distributed.get_backend(weight.ds_process_group) == "gloo"
    )
