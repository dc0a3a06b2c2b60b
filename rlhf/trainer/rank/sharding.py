"""Models in the shards of ZeRO-3 from the start: rank 0 reads, every rank keeps its part, and no rank holds the whole.

The parts are DeepSpeed's own (`deepspeed.zero.Init`), which its engines take over as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from rlhf.models.deepspeed_internals import gathered, partitioned, ranks_of_a_node, shard
from rlhf.trainer.rank.zero_config import deepspeed_module


class ZeroSharding:
    """`rlhf.models.sharded_loading.Sharding` by DeepSpeed, as its `config` says."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        copies = config["zero_optimization"]["zero_hpz_partition_size"] > 1
        node = ranks_of_a_node() if copies else None
        self._init = deepspeed_module().zero.Init(
            module=nn.Module(), config_dict_or_path=dict(config), zero_param_parallel_group=node
        )
        self.reads = torch.distributed.get_rank() == 0

    def broadcast_text(self, message: str) -> str:
        device = deepspeed_module("accelerator").get_accelerator().current_device_name()
        letters = torch.tensor(list(message.encode()), dtype=torch.uint8, device=device)
        length = torch.tensor([len(letters)], device=device)
        torch.distributed.broadcast(length, 0)
        if not self.reads:
            letters = torch.empty(int(length), dtype=torch.uint8, device=device)
        torch.distributed.broadcast(letters, 0)
        return bytes(letters.tolist()).decode()

    def take(self, parameter: nn.Parameter) -> None:
        if partitioned(parameter):  # tied to one that is sharded already
            return
        parameter.data = parameter.data.contiguous()
        loaded, size = parameter.data.untyped_storage(), parameter.data.nbytes
        shard(self._init, parameter)
        # The loader may keep it until the next one arrives. A part of a tensor must not free the whole tensor.
        if loaded.resizable() and loaded.nbytes() == size:
            loaded.resize_(0)

    def broadcast_buffer(self, buffer: Tensor) -> None:
        here = buffer.to(self._init.local_device)
        torch.distributed.broadcast(here, 0)
        buffer.copy_(here)


@contextmanager
def module_by_module(model: nn.Module) -> Iterator[None]:
    """Inside, `model` can compute without an engine: a module's own weights are gathered only while it runs. Without
    shards nothing changes. Collective."""
    running: dict[nn.Module, AbstractContextManager[Any]] = {}

    def gather(layer: nn.Module, inputs: Any) -> None:
        running[layer] = gathered(list(layer.parameters(recurse=False)))
        running[layer].__enter__()

    def release(layer: nn.Module, inputs: Any, output: Any) -> None:
        running.pop(layer).__exit__(None, None, None)

    with ExitStack() as stack:
        for layer in model.modules():
            before = layer.register_forward_pre_hook(gather)
            after = layer.register_forward_hook(release, always_call=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        yield
