"""Sleep of an engine that shares its GPU with a learner rank: it releases its memory, and wakes in two steps.

On a GPU this is vLLM's sleep mode. At level 2 weights and KV cache are dropped: a weight sync restores the weights,
vLLM keeps buffers, and this module keeps the rest. At level 1 the weights go to host memory: with adapters a weight
sync sends no base. On a CPU vLLM has no such mode; there the same storages are emptied by `rlhf.models.offload`, but a
base stays, since vLLM multiplies by packed copies of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS
from vllm.v1.engine.llm_engine import LLMEngine

from rlhf.models.offload import OffloadedStorages, give_back
from rlhf.models.torch_internals import storage_key

Tag = Literal["weights", "kv_cache"]
"""The two parts that wake separately: first the weights, then, once received, the KV cache."""
KEEP_BASE, DROP_ALL = 1, 2
"""Levels of vLLM's sleep."""

_kept: WeakKeyDictionary[Any, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()
"""What a weight sync does not send to each of vLLM's workers in this process, with copies in host memory."""
_emptied: WeakKeyDictionary[Any, dict[Tag, OffloadedStorages]] = WeakKeyDictionary()
"""The storages that each of vLLM's workers in this process has emptied."""


class Sleeper:
    """Puts a paused engine to sleep and wakes it. While it sleeps, nothing may be computed."""

    def __init__(self, engine: LLMEngine, *, keeps_base: bool, on_cpu: bool) -> None:
        self._engine, self._on_cpu = engine, on_cpu
        self._level = KEEP_BASE if keeps_base else DROP_ALL
        self._asleep: set[Tag] = set()

    def sleep(self) -> None:
        """Release weights and KV cache. The weights are undefined afterwards, unless they are a base."""
        if self._asleep:
            return
        if self._level == DROP_ALL:
            self._engine.collective_rpc(keep_unsent_tensors)
        self._engine.sleep(level=self._level, mode="keep")
        if self._on_cpu:
            self._engine.collective_rpc(partial(empty_on_cpu, level=self._level))
        self._asleep = {"weights", "kv_cache"}

    def wake(self, tag: Tag) -> None:
        """Reallocate one part's memory if it sleeps. The engine stays paused."""
        if tag not in self._asleep:
            return
        self._engine.wake_up(tags=[tag])
        if self._on_cpu:
            self._engine.collective_rpc(partial(refill_on_cpu, tag=tag))
        if tag == "weights" and self._level == DROP_ALL:
            self._engine.collective_rpc(restore_unsent_tensors)
        self._asleep.discard(tag)
        if not self._asleep:  # vLLM resumes its scheduler
            self._engine.sleep(level=0, mode="keep")


def keep_unsent_tensors(worker: Any) -> None:
    """Copy to host memory what a sleep at level 2 would lose for good. vLLM calls this in each worker."""
    _kept[worker] = [(tensor, tensor.to("cpu", copy=True)) for tensor in unsent_tensors(worker.get_model())]


def restore_unsent_tensors(worker: Any) -> None:
    """Restore what the sleep lost. vLLM calls this in each worker."""
    with torch.inference_mode():  # some were made in it
        for tensor, copy in _kept.pop(worker):
            tensor.copy_(copy)


def unsent_tensors(model: nn.Module) -> list[Tensor]:
    """Return the parameters that no loader of vLLM fills, a router's correction for instance, and the tensors that
    modules hold as attributes, or in a list or dict of them, and that share no memory with a parameter or a buffer. The
    KV cache is not among them."""
    known = {storage_key(tensor) for tensor in (*model.parameters(), *model.buffers())}
    constants = [weight for path, weight in model.named_parameters() if path.split(".")[-1] in SKIP_LOAD_TENSORS]
    ahead = [value for module in model.modules() for name, value in vars(module).items() if name != "kv_cache"]
    found: dict[int, Tensor] = {}
    while ahead:
        item = ahead.pop()
        if isinstance(item, Tensor) and storage_key(item) not in known:
            found[id(item)] = item
        elif isinstance(item, list | tuple | dict):
            ahead += item.values() if isinstance(item, dict) else item
    return [*constants, *found.values()]


def empty_on_cpu(worker: Any, level: int) -> None:
    """Free the memory of the KV cache and, at level 2, of the weights. vLLM calls this in each worker."""
    parts: dict[Tag, OffloadedStorages] = {"weights": OffloadedStorages(), "kv_cache": OffloadedStorages()}
    if level == DROP_ALL:
        model: nn.Module = worker.get_model()
        drop_packed(model)
        parts["weights"].offload(model.parameters(), contents=False)
    parts["kv_cache"].offload(kv_tensors(worker), contents=False)
    _emptied[worker] = parts
    give_back("cpu")


def refill_on_cpu(worker: Any, tag: Tag) -> None:
    """Allocate that memory again, all zero. vLLM calls this in each worker."""
    _emptied[worker][tag].restore()


def drop_packed(model: nn.Module) -> None:
    """Free the copies of weights that vLLM has packed for a CPU's products. Loading weights packs them again."""
    packed: list[Any] = [layer for layer in model.modules() if "cpu_linear" in vars(layer)]
    for layer in packed:
        layer.cpu_linear = _asleep


def kv_tensors(worker: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of the KV cache: views of few allocations."""
    ahead = list(worker.model_runner.kv_caches)
    while ahead:
        item = ahead.pop()
        if isinstance(item, Tensor):
            yield item
        else:
            ahead += item


def _asleep(*arguments: Any) -> Tensor:
    raise RuntimeError("the engine was asked to compute while it sleeps")
