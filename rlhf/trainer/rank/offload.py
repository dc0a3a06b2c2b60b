"""Frees a rank's device while engines use it: everything stays there, its weights only, or nothing.

The tensors are found by walking through the objects of the rank, DeepSpeed's included: the names and buffers of
masters, moments and gradients differ by ZeRO stage and precision. `engine.offload_states` of DeepSpeed 0.19.8 does
less: stage 0 lacks it, stage 3 takes only its compiled `FusedAdam`, on a CPU stage 2 frees no byte, and it leaves
averages of weights and whole references where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.models.offload import OffloadedStorages, give_back
from rlhf.trainer.settings import Residency

SEARCHED = ("rlhf.", "deepspeed.", "torch.optim.", "torch.nn.")
"""Beginnings of the modules whose objects are searched for tensors."""
SENDERS = "rlhf.weight_sync."
"""Every weight sync fills their buffers again, while a rank holds only weights."""
GRADIENTS = ("grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
"""DeepSpeed's names of buffers that no update reads before it has written them (stage 3), or that are zero from step to
step (stage 1 in 16 bits)."""


class RankOffload:
    """Moves a rank's tensors to host memory, or on a CPU to a file, and back."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages = OffloadedStorages()

    def hold(self, rank: object, policy: nn.Module, held: Residency) -> None:
        """Keep only this part of `rank` on the device; the bytes stay the same."""
        weights = list(weights_of(policy)) if held == "weights" else []
        if held == "everything":
            self._storages.restore()
            return
        self._storages.restore(weights)
        for found, contents in ((gradients_of(rank), False), (tensors_of(rank), True)):
            here = (tensor for tensor in found if tensor.device.type == self._device.type)
            self._storages.offload(here, keep=weights, contents=contents)
        give_back(self._device.type)


def weights_of(policy: nn.Module) -> Iterator[Tensor]:
    """Everything that a forward pass of `policy` reads: parameters, their shards under ZeRO-3, and buffers."""
    for parameter in policy.parameters():
        yield parameter
        yield from (one for name, one in vars(parameter).items() if name.startswith("ds_") and isinstance(one, Tensor))
    yield from policy.buffers()


def tensors_of(root: object) -> Iterator[Tensor]:
    """Every tensor that `root` leads to through containers, and attributes of objects that train."""
    return (found for found in _reached(root) if isinstance(found, Tensor))


def gradients_of(root: object) -> Iterator[Tensor]:
    """Every tensor in a buffer of `GRADIENTS` that `root` leads to."""
    holders = (found for found in _reached(root) if hasattr(found, "__dict__"))
    return tensors_of([vars(holder)[name] for holder in holders for name in GRADIENTS if name in vars(holder)])


def _reached(root: object) -> Iterator[Any]:
    seen: set[int] = set()
    ahead: list[Any] = [root]
    while ahead:
        found = ahead.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        if isinstance(found, Tensor):
            ahead += (found.grad,) if found.is_leaf and found.grad is not None else ()
        if isinstance(found, Mapping):
            ahead += [*found.keys(), *found.values()]
        elif isinstance(found, list | tuple | set | frozenset):
            ahead += found
        elif isinstance(found, Tensor | nn.Module) or _is_searched(type(found).__module__):
            ahead += _attributes(found)


def _is_searched(module: str) -> bool:
    return module.startswith(SEARCHED) and not module.startswith(SENDERS)


def _attributes(found: Any) -> list[Any]:
    slots = [name for kind in type(found).__mro__ for name in vars(kind).get("__slots__", ())]
    values = [getattr(found, name) for name in slots if isinstance(name, str) and hasattr(found, name)]
    return [*values, *(vars(found).values() if hasattr(found, "__dict__") else ())]
