"""The two bounds of a weight sync: gloo alone, and vLLM's own reload alone, of the same bytes in the same processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.weight_sync.gloo import GlooGroup
from rlhf.weight_sync.types import Rendezvous

BUCKET_BYTES = 64 * 2**20
"""The size at which gloo is fastest here."""
PAGE = 4096
_kept: dict[str, Any] = {}


def raw_gloo(_: Any, rank: int, rendezvous: Rendezvous, count: int) -> float:
    """Seconds to broadcast `count` bytes from rank 0 out of two buffers, in a group that exists."""
    if "group" not in _kept:
        _kept["group"] = GlooGroup(rank, rendezvous)
        _kept["buffers"] = [torch.ones(BUCKET_BYTES, dtype=torch.uint8) for _ in range(2)]
    group, buffers = _kept["group"], _kept["buffers"]
    _meet(group)
    began = time.perf_counter()
    parts = [min(BUCKET_BYTES, count - start) for start in range(0, count, BUCKET_BYTES)]
    for index, part in enumerate(parts):
        group.start_broadcast(buffers[index % 2][:part])
        if index:
            group.finish_next()
    group.finish_next()
    _meet(group)
    return time.perf_counter() - began


def _meet(group: GlooGroup) -> None:
    group.start_barrier()
    group.finish_next()


def own_reload(worker: Any, folder: Path) -> float:
    """Seconds of vLLM's layer-wise reload from tensors that lie in memory, which several processes share."""
    from safetensors.torch import load_file

    if "state" not in _kept:
        _kept["state"] = load_file(folder / "model.safetensors")
        for tensor in _kept["state"].values():
            tensor.flatten()[:: PAGE // tensor.element_size()].sum()  # read from the file now
    seconds: float = worker._thread.run(
        lambda engine: engine._engine.collective_rpc(_reload, args=(_kept["state"],))[0],
        awaited="vLLM's own reload",
        timeout_seconds=300,
    )
    return seconds


def _reload(worker: Any, state: dict[str, Tensor]) -> float:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    model: Any = worker.get_model()
    began = time.perf_counter()
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(model)
        model.load_weights(iter(state.items()))
        finalize_layerwise_reload(model, worker.model_config)
    return time.perf_counter() - began
