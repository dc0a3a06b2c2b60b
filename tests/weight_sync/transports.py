"""Members of a transfer group, each in a thread of this process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from rlhf.weight_sync.broadcast import BroadcastSender, BroadcastSource
from rlhf.weight_sync.buckets import unpack_bucket
from rlhf.weight_sync.types import GroupAddress, Manifest, Rendezvous, TensorSpec


def rendezvous(world_size: int, *, backend: str = "gloo", timeout_seconds: float = 20, **changes: Any) -> Rendezvous:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return Rendezvous(
        backend=backend,
        address=GroupAddress(host="127.0.0.1", port=port, nccl_id="bmNjbA==" if backend == "nccl" else ""),
        world_size=world_size,
        timeout_seconds=timeout_seconds,
        **changes,
    )


def at_once(*calls: Callable[[], Any]) -> list[Future[Any]]:
    """Run each call in its own thread; returns when all have ended."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [threads.submit(call) for call in calls]


def results(futures: Sequence[Future[Any]]) -> list[Any]:
    return [future.result() for future in futures]


def broadcasting(meeting: Rendezvous) -> tuple[BroadcastSender, list[BroadcastSource]]:
    """A sender and its receivers by gloo or nccl, joined."""
    sender = BroadcastSender()
    members = range(1, meeting.world_size)
    _, *inlets = results(
        at_once(lambda: sender.connect(meeting), *[lambda r=r: BroadcastSource(r, meeting) for r in members])
    )
    return sender, inlets


def manifest_of(tensors: dict[str, Tensor]) -> Manifest:
    return Manifest(
        tensors=tuple(
            TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
            for name, tensor in tensors.items()
        )
    )


def fleeting(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Tensors that are gone when the next one is asked for, as under ZeRO-3."""
    for name, tensor in tensors.items():
        gathered = tensor.clone()
        yield name, gathered
        gathered.fill_(float("nan"))


def received(inlet: Any, manifest: Manifest, *, between: Callable[[], None] = lambda: None) -> dict[str, Tensor]:
    """The tensors of one weight sync; `between` is called before each bucket is read."""
    found: dict[str, torch.Tensor] = {}
    for bucket, buffer in inlet.buckets(manifest):
        between()
        found |= {name: tensor.clone() for name, tensor in unpack_bucket(bucket, buffer)}
        del buffer
    return found
