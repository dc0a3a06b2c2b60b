"""What a rank holds on its device while others use it: everything, its weights only, or nothing.

Found by walking through the objects of the rank, DeepSpeed's included: what masters, moments and gradients are called,
and in which buffers they are, differs by ZeRO stage and precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.models.offload import ParkedStorages, give_back
from rlhf.trainer.settings import Held

OWN = ("rlhf.", "deepspeed.", "torch.optim.", "torch.nn.")
"""Beginnings of the modules whose objects are searched for tensors."""
SENDERS = "rlhf.weight_sync."
"""Their buffers are filled anew by every weight sync, which runs while a rank holds only weights."""


class Parking:
    """Parks a rank's tensors in host memory (on a CPU: in files)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._parked = ParkedStorages()

    def hold(self, rank: object, policy: nn.Module, held: Held) -> None:
        """Have just this part of `rank` on the device; all bytes are as before."""
        weights = list(weights_of(policy)) if held == "weights" else []
        if held == "everything":
            self._parked.restore()
            return
        self._parked.restore(weights)
        mine = (tensor for tensor in tensors_of(rank) if tensor.device.type == self._device.type)
        self._parked.park(mine, keep=weights)
        give_back(self._device.type)


def weights_of(policy: nn.Module) -> Iterator[Tensor]:
    """Everything that a forward pass of `policy` reads: parameters, their shards under ZeRO-3, and buffers."""
    for parameter in policy.parameters():
        yield parameter
        yield from (value for value in vars(parameter).values() if isinstance(value, Tensor))
    yield from policy.buffers()


def tensors_of(root: object) -> Iterator[Tensor]:
    """Every tensor that `root` leads to through containers, and attributes of objects that train."""
    seen: set[int] = set()
    ahead: list[Any] = [root]
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            yield one
            ahead += (one.grad,) if one.is_leaf and one.grad is not None else ()
        if isinstance(one, Mapping):
            ahead += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            ahead += one
        elif isinstance(one, Tensor | nn.Module) or _is_searched(type(one).__module__):
            ahead += _attributes(one)


def _is_searched(module: str) -> bool:
    return module.startswith(OWN) and not module.startswith(SENDERS)


def _attributes(one: Any) -> list[Any]:
    slots = [name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())]
    found = [getattr(one, name) for name in slots if isinstance(name, str) and hasattr(one, name)]
    return [*found, *(vars(one).values() if hasattr(one, "__dict__") else ())]
