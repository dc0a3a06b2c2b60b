"""The learner's end of a publish: one class a backend, behind one protocol.

All learner ranks walk the same iterator of tensors, because under ZeRO-3 each step of it is a collective: the rank
that holds a sender does `sender.send(tensors, manifest)`, every other one `gather_only(tensors)`. A tensor is read
before the next one is asked for, so an iterator may gather and free as it goes.
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
    """`connect` once, while the engines' workers join; `send` in every publish, while they receive; `close` at last.

    `send` returns when every member has the tensors. All raise `TransferError`, within the rendezvous' deadline.
    """

    def connect(self, rendezvous: Rendezvous) -> None: ...
    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None: ...
    def close(self) -> None: ...


def sender_for(backend: str) -> WeightSender:
    """A sender of `gloo`, `nccl` or `ipc`."""
    if engine_backend(backend) == "gloo":
        return GlooSender()
    # The others speak vLLM's own wire, and importing them imports vLLM.
    from rlhf.transfer.gpu_senders import IpcSender, NcclSender

    return NcclSender() if backend == "nccl" else IpcSender()


def gather_only(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Take part in gathering without sending anything."""
    deque(tensors, maxlen=0)


class GlooSender:
    """Packs into two host buffers by turns: while one is on its way the next tensors are gathered into the other."""

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
        with ExitStack() as failing:  # half a publish is on the wire: leave, and no engine waits for its deadline
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
