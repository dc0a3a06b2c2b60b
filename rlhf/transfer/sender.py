"""The learner's side of a weight sync: one sender class per backend, with one interface.

All learner ranks iterate over the same tensors, because under ZeRO-3 each step is a collective. The rank with a sender
calls `sender.send(tensors, manifest)`, every other rank calls `gather_only(tensors)`. A tensor is read before the next
one is requested, so an iterator may gather and free tensors one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Protocol

import torch
from torch import Tensor

from rlhf.errors import TransferError
from rlhf.transfer.buckets import buffers_for, cut_buckets, digest, pack_bucket
from rlhf.transfer.gloo_group import GlooGroup
from rlhf.transfer.init_info import engine_backend
from rlhf.transfer.store import ROOT
from rlhf.transfer.types import Manifest, Rendezvous


class WeightSender(Protocol):
    """Sends weights to engines. `connect` is called once while the engines' workers join, `send` in every weight sync
    while they receive, and `close` at the end.

    `send` returns when every member has the tensors. All raise `TransferError` within the rendezvous' deadline.
    """

    def connect(self, rendezvous: Rendezvous) -> None: ...
    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None: ...
    def close(self) -> None: ...


def sender_for(backend: str) -> WeightSender:
    """The sender for the backend `gloo`, `nccl` or `ipc`."""
    if engine_backend(backend) == "gloo":
        return GlooSender()
    # The others use vLLM's own protocols, and importing them imports vLLM.
    from rlhf.transfer.gpu_senders import IpcSender, NcclSender

    return NcclSender() if backend == "nccl" else IpcSender()


def gather_only(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Take part in gathering without sending anything."""
    deque(tensors, maxlen=0)


class GlooSender:
    """Sends through two host buffers in turn: while one is being sent, the next tensors are gathered into the other."""

    def __init__(self) -> None:
        self._group: GlooGroup | None = None
        self._bucket_bytes = 0
        self._buffers: tuple[Tensor, ...] = ()

    def connect(self, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._group = GlooGroup(ROOT, rendezvous)

    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        if self._group is None:
            raise TransferError("send came before connect, or after a publish that failed")
        with ExitStack() as failing:  # after a partial send: engines need not wait for their deadline
            failing.callback(self.close)
            self._send(self._group, tensors, manifest)
            failing.pop_all()

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def _send(self, group: GlooGroup, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        group.broadcast(torch.tensor(list(digest(manifest, self._bucket_bytes)), dtype=torch.uint8))
        buckets = cut_buckets(manifest, self._bucket_bytes)
        if not self._buffers:
            self._buffers = buffers_for(buckets, 2)
        for index, bucket in enumerate(buckets):
            packed = pack_bucket(bucket, tensors, self._buffers[index % 2])
            if index:
                group.finish_broadcast()
            group.start_broadcast(packed)
        if buckets:
            group.finish_broadcast()
        # Steps of the iterator after its last tensor are collectives too.
        gather_only(tensors)
        group.meet()
