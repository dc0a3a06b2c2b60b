"""Record which experts an engine chose for each token, where vLLM does not: on a CPU, in the engine's process.

A token's choice is stored at its position in the KV cache. For a cached prefix, the stored choice is the one that its
keys and values were computed with.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.fused_moe.router.base_router import BaseRouter
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.v1.kv_cache_interface import FullAttentionSpec

from rlhf.types import Routing


class RoutingRecord:
    """The experts of every token in the KV cache, `int16 [places, layers, k]`, with -1 in layers without experts.

    Raises `ValueError` for a model whose choices cannot be observed, or whose cache drops tokens that are still in use.
    """

    def __init__(self, worker: Any) -> None:
        self._runner = worker.model_runner
        self._group, spec, self._layer_name = _whole_context(self._runner.kv_cache_config)
        self._block = spec.block_size
        routers = _routers(self._runner.get_model())
        layers, chosen = max(routers) + 1, max(router.top_k for router in routers.values())
        places = self._runner.kv_cache_config.num_blocks * self._block
        self._experts = torch.full((places, layers, chosen), -1, dtype=torch.int16)
        for layer, router in routers.items():
            router.set_capture_fn(partial(self._keep, layer))

    def of(self, request: str, tokens: int) -> Routing:
        """Return the experts of the first `tokens` tokens of a request that the engine has just computed: `[tokens,
        layers, k]`."""
        blocks = torch.tensor(self._runner.requests[request].block_ids[self._group])
        places = (blocks[:, None] * self._block + torch.arange(self._block)).flatten()[:tokens]
        experts: Routing = self._experts[places].numpy()
        return experts

    def _keep(self, layer: int, experts: Tensor) -> None:
        """Store what the router of `layer` chose for the tokens of one step, `[N, k]`; rows beyond them are padding."""
        slots = get_forward_context().slot_mapping
        if not isinstance(slots, dict) or self._layer_name not in slots:
            return  # vLLM's profiling run: nothing is cached
        places = slots[self._layer_name]
        tokens = places >= 0
        self._experts[places[tokens], layer, : experts.shape[1]] = experts[: len(places)][tokens].to(torch.int16)


def expert_choices(told: NDArray[Any]) -> Routing:
    """Return the choices that vLLM itself reports, `[T, layers, k]`, with -1 in place of its zeros for layers without
    experts: a real choice never repeats an expert."""
    experts = told.astype(np.int16)
    if experts.shape[-1] > 1:
        experts[(experts == 0).all(-1)] = -1
    return experts


def _whole_context(config: Any) -> tuple[int, FullAttentionSpec, str]:
    """Return the KV-cache group that stores every token of a context: its number, its kind, and one of its layers."""
    for number, group in enumerate(config.kv_cache_groups):
        if isinstance(group.kv_cache_spec, FullAttentionSpec):
            return number, group.kv_cache_spec, group.layer_names[0]
    raise ValueError("no layer of this model keeps its whole context; set rollout.routing: ignore")


def _routers(model: torch.nn.Module) -> dict[int, BaseRouter]:
    """Return the router of every layer with experts, by layer number."""
    routers: dict[int, BaseRouter] = {}
    for module in model.modules():
        if isinstance(module, MoERunner):
            if module.is_monolithic or not isinstance(module.router, BaseRouter):
                raise ValueError("vLLM does not say which experts this model chooses; set rollout.routing: ignore")
            routers[module.layer_id] = module.router
    if not routers:
        raise ValueError("this model has no experts; set rollout.routing: ignore")
    return routers
