"""The weights of a DeepSpeed engine as whole tensors, whatever its ZeRO stage: listed, walked, moved and put back.

Every function is collective under ZeRO-3: all ranks call it, at the same point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.models.policy import Policy
from rlhf.types import Manifest, TensorSpec

Named = list[tuple[str, nn.Parameter]]


def named_weights(policy: Policy) -> Named:
    """Parameters under their Hugging Face names, tied ones once."""
    return list(policy.model.named_parameters())


def manifest(policy: Policy) -> Manifest:
    """What a publish sends, in order. Needs no communication."""
    return Manifest(
        tensors=tuple(
            TensorSpec(name=name, dtype=str(weight.dtype).removeprefix("torch."), shape=_shape(weight))
            for name, weight in named_weights(policy)
        )
    )


def walk(policy: Policy, bucket_bytes: int) -> Iterator[tuple[str, Tensor]]:
    """Every weight as a whole tensor, gathered bucket by bucket. A tensor is valid until the next one is asked for."""
    for bucket in _buckets(named_weights(policy), bucket_bytes):
        with gathered([weight for _, weight in bucket]):
            yield from ((name, weight.detach()) for name, weight in bucket)


def whole_state(policy: Policy, bucket_bytes: int, *, keep: bool) -> dict[str, Tensor]:
    """A copy of all weights on the CPU; ranks that do not `keep` it only take part in gathering."""
    tensors = walk(policy, bucket_bytes)
    return {name: tensor.to("cpu", copy=True) for name, tensor in tensors if keep}


def change(policy: Policy, bucket_bytes: int, changed: Callable[[str, Tensor], Tensor]) -> None:
    """Replace every weight by `changed(name, whole tensor)`, the same on every rank. Float32 masters stay as they are:
    this is for weights that will be put back."""
    for bucket in _buckets(named_weights(policy), bucket_bytes):
        weights = [weight for _, weight in bucket]
        with gathered(weights, modify=True), torch.no_grad():
            for name, weight in bucket:
                weight.copy_(changed(name, weight.detach()))


def snapshot(policy: Policy) -> list[Tensor]:
    """A bitwise copy of what this rank holds of every weight."""
    return [_held(weight).detach().clone() for _, weight in named_weights(policy)]


def put_back(policy: Policy, held: list[Tensor]) -> None:
    """Undo every change since `snapshot`, bit for bit."""
    with torch.no_grad():
        for (_, weight), saved in zip(named_weights(policy), held, strict=True):
            _held(weight).copy_(saved)


def gathered(weights: list[nn.Parameter], modify: bool = False) -> AbstractContextManager[Any]:
    """Inside, `weights` are whole on every rank; with `modify`, changes (rank 0's) outlive the block."""
    if not any(_partitioned(weight) for weight in weights):
        return nullcontext()
    import deepspeed

    gather: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
        weights, modifier_rank=0 if modify else None
    )
    return gather


def _partitioned(weight: Any) -> bool:
    return hasattr(weight, "ds_tensor")


def _held(weight: Any) -> Tensor:
    held: Tensor = weight.ds_tensor if _partitioned(weight) else weight
    return held


def _shape(weight: Any) -> tuple[int, ...]:
    return tuple(weight.ds_shape) if _partitioned(weight) else tuple(weight.shape)


def _bytes(weight: Any) -> int:
    elements = weight.ds_numel if _partitioned(weight) else weight.numel()
    return int(elements) * int(weight.element_size())


def _buckets(named: Named, bucket_bytes: int) -> Iterator[Named]:
    bucket: Named = []
    filled = 0
    for name, weight in named:
        if bucket and filled + _bytes(weight) > bucket_bytes:
            yield bucket
            bucket, filled = [], 0
        bucket.append((name, weight))
        filled += _bytes(weight)
    if bucket:
        yield bucket
