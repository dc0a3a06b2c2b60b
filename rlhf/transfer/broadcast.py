"""A weight sync by broadcast: both ends, over gloo and nccl alike.

First the digest of what is about to be sent, then the buckets, then a barrier. A bucket travels while the next one is
gathered, and while the one before it is loaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
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
from rlhf.transfer.types import AHEAD_BYTES, Manifest, Rendezvous

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
            if not (index and buckets[index - 1].alone):
                group.finish_next()
            group.start_broadcast(filled)
            if bucket.alone:  # it may be the tensor itself, which is gone when the next one is asked for
                group.finish_next()
        if not (buckets and buckets[-1].alone):
            group.finish_next()
        # Steps of the iterator after its last tensor are collectives too.
        for _ in tensors:
            pass
        group.start_meeting()
        group.finish_next()
        self._buffers.settle()


class BroadcastInlet:
    """The end of one of an engine's workers: an `Inlet`. Joins the group as `rank`.

    It has buffers for a bucket that is loaded, for the one before, where unfinished layers may still have tensors, and
    for those that arrive meanwhile. On a CPU a reload is slower than gloo: there many may arrive ahead of it, and the
    learner, which has sent its last, can go on.
    """

    held = 1

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._group = join_group(rank, rendezvous)
        on_cpu = self._group.device.type == "cpu"
        self._ahead = max(1, AHEAD_BYTES // self._bucket_bytes) if on_cpu else 1
        self._buffers = Buffers(self._group.device, self._ahead + 1 + self.held)

    def arrivals(self, manifest: Manifest) -> Generator[tuple[Bucket, Tensor], None, None]:
        group, buckets = self._group, cut_buckets(manifest, self._bucket_bytes)
        self._agree(manifest)
        self._buffers.reserve(buckets)
        coming: deque[Tensor] = deque()
        for index, bucket in enumerate(buckets):
            while self._has_room(buckets, index, index + len(coming)):
                coming.append(self._buffers.turn(index + len(coming), buckets[index + len(coming)]))
                group.start_broadcast(coming[-1])
                if index + len(coming) == len(buckets):
                    group.start_meeting()
            group.finish_next()
            yield bucket, coming.popleft()
        if not buckets:
            group.start_meeting()
        group.finish_next()
        self._buffers.settle()

    def close(self) -> None:
        self._group.close()

    def _has_room(self, buckets: Sequence[Bucket], index: int, later: int) -> bool:
        """Whether the bucket `later` may arrive before the one at `index` is loaded."""
        if later >= len(buckets) or later > index + self._ahead:
            return False
        return later <= index + 1 or sum(bucket.bytes for bucket in buckets[index + 1 : later + 1]) <= AHEAD_BYTES

    def _agree(self, manifest: Manifest) -> None:
        told = torch.empty(DIGEST_BYTES, dtype=torch.uint8, device=self._group.device)
        self._group.start_broadcast(told)
        self._group.finish_next()
        expect_digest(bytes(told.tolist()), manifest, self._bucket_bytes)
