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


def gathered_to_read(weights: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """As `gathered`, for who changes nothing and runs no module inside. On a CPU the shards are broadcast to where they
    belong, where DeepSpeed's gathering and gloo's copy everything thrice more; a single rank's are read where they
    are."""
    held = list({id(weight): weight for weight in weights if _is_away(weight)}.values())
    return _in_place(held) if held and all(map(_is_plain, held)) else gathered(weights)


@contextmanager
def _in_place(weights: Sequence[Any]) -> Iterator[None]:
    sending: list[distributed.Work] = []
    whole = [_whole(weight, sending) for weight in weights]
    for work in sending:
        work.wait()
    try:
        for weight, elements in zip(weights, whole, strict=True):
            weight.data = elements[: weight.ds_numel].view(weight.ds_shape)
        yield
    finally:
        for weight in weights:
            weight.data = torch.empty(0, dtype=weight.dtype)


def _whole(weight: Any, sending: list[distributed.Work]) -> Tensor:
    """All shards of a weight in a row, the last one padded, when what it adds to `sending` has ended."""
    shard: Tensor = weight.ds_tensor.detach()
    group = weight.ds_process_group
    ranks = distributed.get_process_group_ranks(group)
    if len(ranks) == 1:
        return shard
    whole = torch.empty(len(ranks) * shard.numel(), dtype=shard.dtype)
    parts = torch.split(whole, shard.numel())
    parts[distributed.get_rank(group)].copy_(shard)
    for rank, part in zip(ranks, parts, strict=True):
        sending.append(distributed.broadcast(part, rank, group=group, async_op=True))
    return whole


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
