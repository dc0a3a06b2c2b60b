"""A weight sync by broadcast: both ends, over gloo and nccl alike.

First the digest of what is about to be sent, then the buckets, then a barrier. A bucket travels while the next one is
gathered, and while the one before it is loaded.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlhf.errors import TransferError
from rlhf.weight_sync.buckets import Bucket, Buffers, bytes_of, cut_buckets, digest, expect_digest, pack_bucket
from rlhf.weight_sync.store import ROOT
from rlhf.weight_sync.types import Manifest, Rendezvous

if TYPE_CHECKING:
    from rlhf.weight_sync.gloo import GlooGroup
    from rlhf.weight_sync.nccl import NcclGroup

DIGEST_BYTES = 32


def join_group(rank: int, rendezvous: Rendezvous) -> GlooGroup | NcclGroup:
    """Join the group of the rendezvous' backend, `gloo` or `nccl` (on the current CUDA device). Rank 0 sends, and every
    call ends within the group's deadline. Raises `TransferError` where the others do not join in time, or the backend
    is not available."""
    if rendezvous.backend == "gloo":
        from rlhf.weight_sync.gloo import GlooGroup

        return GlooGroup(rank, rendezvous)
    # Importing it imports vLLM.
    from rlhf.weight_sync.nccl import NcclGroup

    return NcclGroup(rank, rendezvous, torch.device("cuda", torch.cuda.current_device()))


class BroadcastSender:
    """The learner's end: a `WeightSender`."""

    def __init__(self) -> None:
        self._group: GlooGroup | NcclGroup | None = None
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

    def _send(self, group: GlooGroup | NcclGroup, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        buckets = cut_buckets(manifest, self._bucket_bytes)
        self._buffers.reserve(buckets)
        promised = list(digest(manifest, self._bucket_bytes))
        group.start_broadcast(torch.tensor(promised, dtype=torch.uint8, device=group.device))
        for index, bucket in enumerate(buckets):
            if bucket.alone:
                filled = bytes_of(bucket, tensors, group.device)
            else:
                filled = pack_bucket(bucket, tensors, self._buffers.turn(index, bucket))
            if not (index and buckets[index - 1].alone):
                group.finish_next()
            group.start_broadcast(filled)
            if bucket.alone:  # it may be the tensor itself, which is gone when the next one is requested
                group.finish_next()
        if not (buckets and buckets[-1].alone):
            group.finish_next()
        # Steps of the iterator after its last tensor are collectives too.
        for _ in tensors:
            pass
        group.start_barrier()
        group.finish_next()
        self._buffers.settle()


class BroadcastSource:
    """The end of an engine's worker: a `BucketSource`. Joins the group as `rank`.

    It has three buffers: for the bucket that is loaded, for the one before, where unfinished layers may still have
    tensors, and for the one that arrives meanwhile.
    """

    held = 1

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._group = join_group(rank, rendezvous)
        self._buffers = Buffers(self._group.device, 2 + self.held)

    def buckets(self, manifest: Manifest) -> Generator[tuple[Bucket, Tensor], None, None]:
        buckets = cut_buckets(manifest, self._bucket_bytes)
        self._agree(manifest)
        self._buffers.reserve(buckets)
        coming = self._start(buckets, 0)
        for index, bucket in enumerate(buckets):
            buffer, coming = coming, self._start(buckets, index + 1)
            self._group.finish_next()
            yield bucket, buffer
        self._group.finish_next()
        self._buffers.settle()

    def close(self) -> None:
        self._group.close()

    def _start(self, buckets: Sequence[Bucket], index: int) -> Tensor:
        """Start to receive the bucket at `index`, and after the last one the barrier."""
        if index == len(buckets):
            self._group.start_barrier()
            return torch.empty(0)
        buffer = self._buffers.turn(index, buckets[index])
        self._group.start_broadcast(buffer)
        return buffer

    def _agree(self, manifest: Manifest) -> None:
        received = torch.empty(DIGEST_BYTES, dtype=torch.uint8, device=self._group.device)
        self._group.start_broadcast(received)
        self._group.finish_next()
        expect_digest(bytes(received.tolist()).hex(), manifest, self._bucket_bytes)
