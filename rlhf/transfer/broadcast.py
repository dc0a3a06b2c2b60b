"""A weight sync by broadcast: both ends, over gloo and nccl alike.

First the digest of what is about to be sent, then the buckets, then a barrier. A bucket travels while the next one is
gathered, and while the one before it is loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack

import torch
from torch import Tensor

from rlhf.errors import TransferError
from rlhf.transfer.buckets import (
    Bucket,
    Buffers,
    bytes_of,
    cut_buckets,
    digest,
    expect_digest,
    pack_bucket,
)
from rlhf.transfer.communicator import Communicator, join_group
from rlhf.transfer.store import ROOT
from rlhf.transfer.types import Manifest, Rendezvous

DIGEST_BYTES = 32


class BroadcastSender:
    """The learner's end: a `WeightSender`."""

    def __init__(self) -> None:
        self._group: Communicator | None = None
        self._bucket_bytes = 0

    def connect(self, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._group = join_group(ROOT, rendezvous)
        self._buffers = Buffers(self._group.device, 2)

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

    def _send(self, group: Communicator, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        buckets = cut_buckets(manifest, self._bucket_bytes)
        self._buffers.reserve(buckets)
        told = list(digest(manifest, self._bucket_bytes))
        group.start_broadcast(torch.tensor(told, dtype=torch.uint8, device=group.device))
        for index, bucket in enumerate(buckets):
            if bucket.alone:
                filled = bytes_of(bucket, tensors, group.device)
            else:
                filled = pack_bucket(bucket, tensors, self._buffers.turn(index, bucket))
            group.finish_broadcasts()
            group.start_broadcast(filled)
            if bucket.alone:  # it may be the tensor itself, which is gone when the next one is asked for
                group.finish_broadcasts()
        group.finish_broadcasts()
        # Steps of the iterator after its last tensor are collectives too.
        for _ in tensors:
            pass
        group.meet()
        self._buffers.settle()


class BroadcastInlet:
    """The end of one of an engine's workers: an `Inlet`. Joins the group as `rank`. It has three buffers, for a bucket
    that arrives, one that is loaded, and the one before, where unfinished layers may still have tensors."""

    held = 1

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._group = join_group(rank, rendezvous)
        self._buffers = Buffers(self._group.device, 2 + self.held)

    def arrivals(self, manifest: Manifest) -> Generator[tuple[Bucket, Tensor], None, None]:
        group, buckets = self._group, cut_buckets(manifest, self._bucket_bytes)
        self._agree(manifest)
        self._buffers.reserve(buckets)
        coming = self._start(buckets, 0)
        for index, bucket in enumerate(buckets):
            group.finish_broadcasts()
            arrived, coming = coming, self._start(buckets, index + 1)
            yield bucket, arrived
        group.meet()
        self._buffers.settle()

    def close(self) -> None:
        self._group.close()

    def _agree(self, manifest: Manifest) -> None:
        told = torch.empty(DIGEST_BYTES, dtype=torch.uint8, device=self._group.device)
        self._group.start_broadcast(told)
        self._group.finish_broadcasts()
        expect_digest(bytes(told.tolist()), manifest, self._bucket_bytes)

    def _start(self, buckets: tuple[Bucket, ...], index: int) -> Tensor:
        """Start to receive the bucket with this index, if there is one."""
        if index == len(buckets):
            return torch.empty(0, dtype=torch.uint8)
        buffer = self._buffers.turn(index, buckets[index])
        self._group.start_broadcast(buffer)
        return buffer
