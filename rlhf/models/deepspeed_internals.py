"""The shards of ZeRO-3, by names that DeepSpeed does not promise to keep: a new DeepSpeed breaks this page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


def partitioned(weight: Any) -> bool:
    """Whether ZeRO-3 holds this weight in shards."""
    return hasattr(weight, "ds_tensor")


def local_part(weight: Any) -> Tensor:
    """Return this rank's part of a weight: its shard under ZeRO-3, else the whole."""
    part: Tensor = weight.ds_tensor if partitioned(weight) else weight
    return part


def elements(weight: Any) -> int:
    """Return the number of elements of a whole weight."""
    return int(weight.ds_numel if partitioned(weight) else weight.numel())


def whole_shape(weight: Any) -> tuple[int, ...]:
    return tuple(weight.ds_shape) if partitioned(weight) else tuple(weight.shape)


def shard_index(weight: Any) -> int:
    """Return the index of this rank's shard; all shards of a weight have one size."""
    return int(weight.ds_zero_partition_rank) if partitioned(weight) else 0


def weight_bytes(weight: Any) -> int:
    """Return the size of a whole weight."""
    return elements(weight) * int(weight.element_size())


def shard(init: Any, parameter: nn.Parameter) -> None:
    """Keep this rank's shard of rank 0's parameter, as `deepspeed.zero.Init` does."""
    init._convert_to_zero_parameters([parameter])


def ranks_of_a_node() -> Any:
    """Return the group of ranks that together hold a copy of all weights, once a configuration asks for it."""
    return import_module("deepspeed.utils.groups")._get_zero_param_intra_parallel_group()


def fragment(weight: Any) -> Any:
    """Return where the elements of a weight are in a rank's optimizer of stage 1 or 2; None if it has none of them."""
    return weight._hp_mapping


def release(weights: Iterable[Any]) -> None:
    """Free gathered weights of ZeRO-3, and its copies within nodes, before shards are written: both would be stale."""
    for weight in weights:
        if partitioned(weight):
            if weight.ds_status.name == "AVAILABLE":
                weight.partition()
            weight.ds_secondary_tensor = None


def gathered(weights: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """Inside, `weights` are whole on every rank; changes are lost where they are shards."""
    if not any(partitioned(weight) for weight in weights):
        return nullcontext()
    gather: AbstractContextManager[Any] = import_module("deepspeed").zero.GatheredParameters(list(weights))
    return gather


@contextmanager
def whole_to_read(weights: Iterable[Any]) -> Iterator[None]:
    """As `gathered`, for who changes nothing and runs no module inside. DeepSpeed ends a gathering by waiting for the
    whole device; here only the stream that reads waits, so a bucket is gathered while the last one is sent."""
    away = list({id(one): one for one in weights if partitioned(one) and one.ds_status.name != "AVAILABLE"}.values())
    before = [weight.data for weight in away]
    gathering = [_start_gathering(weight) for weight in away]
    try:
        for weight, (row, work) in zip(away, gathering, strict=True):
            work.wait()
            weight.data = row[: weight.ds_numel].view(weight.ds_shape)
        yield
    finally:
        for weight, empty in zip(away, before, strict=True):
            weight.data = empty


def _start_gathering(weight: Any) -> tuple[Tensor, Any]:
    """Return the shards of a weight in a row, the last one padded, and the work that brings them."""
    deepspeed, group = import_module("deepspeed"), weight.ds_process_group
    shard = weight.ds_tensor.detach().to(deepspeed.get_accelerator().current_device_name())
    row = torch.empty(len(shard) * deepspeed.comm.get_world_size(group), dtype=shard.dtype, device=shard.device)
    return row, deepspeed.comm.all_gather_into_tensor(row, shard, group=group, async_op=True)
