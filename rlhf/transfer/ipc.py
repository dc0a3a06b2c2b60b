"""A weight sync over CUDA IPC: both ends. Every rank of the learner sends to the engines' workers on its own GPU.

A rank gathers buckets into memory that it shares, and its readers load them from there: one bucket is gathered while
the last is loaded. The memory exists during a weight sync only, and is exported once for each reader, since torch
counts readers by exports. What is told goes through a signed store (`rlhf.transfer.handles`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from rlhf.errors import TransferError
from rlhf.transfer import cuda
from rlhf.transfer.buckets import ALIGNMENT, Bucket, cut_buckets, digest, expect_digest, pack_bucket
from rlhf.transfer.handles import HandleExchange, SyncStart
from rlhf.transfer.types import Manifest, Rendezvous

GONE = "a tensor could not be sent or loaded; its own error says why"


class IpcSender:
    """The end of the learner's rank `rank`: a `WeightSender`. A rank without readers only takes part in gathering."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._exchange: HandleExchange | None = None
        self._left: HandleExchange | None = None
        self._readers: tuple[int, ...] = ()

    def connect(self, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._exchange = HandleExchange(rendezvous, hosts=self._rank == 0)
        self._exchange.tell_gpu(self._rank, cuda.gpu_uuid())
        self._readers = self._exchange.readers_of(self._rank)

    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None:
        if self._exchange is None:
            raise TransferError("send came before connect, or after a publish that failed")
        with ExitStack() as failing:
            failing.callback(self.close)
            if self._readers:
                self._send(self._exchange, tensors, cut_buckets(manifest, self._bucket_bytes), manifest)
            # Steps of the iterator after its last tensor are collectives too.
            for _ in tensors:
                pass
            self._exchange.end()
            failing.pop_all()

    def close(self) -> None:
        """Leave the exchange. Rank 0 keeps it for as long as it lives: peers have yet to read why it failed."""
        self._left, self._exchange = self._exchange or self._left, None

    def _send(
        self,
        exchange: HandleExchange,
        tensors: Iterator[tuple[str, Tensor]],
        buckets: Sequence[Bucket],
        manifest: Manifest,
    ) -> None:
        halves = Halves(buckets)
        memory = cuda.shared_memory(halves.bytes)
        told = digest(manifest, self._bucket_bytes).hex()
        for reader in self._readers:
            exchange.open(reader, SyncStart(digest=told, handle=cuda.export_memory(memory)))
        for index, bucket in enumerate(buckets):
            with on_failure(exchange.tell_filled, index, self._rank, GONE):
                exchange.wait_loaded(halves.free_after(index), self._readers)
                pack_bucket(bucket, tensors, memory[halves.place(index)])
                cuda.synchronize()
            exchange.tell_filled(index, self._rank)
        exchange.wait_loaded(len(buckets) - 1, self._readers)
        del memory
        cuda.collect()


class IpcInlet:
    """The end of one of an engine's workers: an `Inlet`. `rank` is that of the reader, from 1."""

    held = 0

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._rank, self._bucket_bytes = rank, rendezvous.bucket_bytes
        self._exchange: HandleExchange | None = HandleExchange(rendezvous, hosts=False)
        self._sender = self._exchange.choose_sender(rank, cuda.gpu_uuid())

    def arrivals(self, manifest: Manifest) -> Generator[tuple[Bucket, Tensor], None, None]:
        exchange = self._exchange
        if exchange is None:
            raise TransferError("the exchange of handles was left")
        buckets = cut_buckets(manifest, self._bucket_bytes)
        halves = Halves(buckets)
        with on_failure(exchange.tell_loaded, 0, self._rank, GONE):
            opening = exchange.opening(self._rank)
            expect_digest(bytes.fromhex(opening.digest), manifest, self._bucket_bytes)
            memory = cuda.opened_memory(opening.handle)
        for index, bucket in enumerate(buckets):
            with on_failure(exchange.tell_loaded, index, self._rank, GONE):
                exchange.wait_filled(index, self._sender)
                yield bucket, memory[halves.place(index)]
                cuda.synchronize()
            if index == len(buckets) - 1:
                del memory  # before the sender frees it
            exchange.tell_loaded(index, self._rank)
        exchange.end()

    def close(self) -> None:
        self._exchange = None


class Halves:
    """The places of buckets in shared memory: packed ones take turns in its halves, a larger tensor has all of it."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        packed = max((bucket.bytes for bucket in buckets if not bucket.alone), default=0)
        self._half = -(-packed // ALIGNMENT) * ALIGNMENT
        self.bytes = max(2 * self._half, max((bucket.bytes for bucket in buckets), default=0), 1)

    def place(self, index: int) -> slice:
        """The bytes of the bucket with this index."""
        bucket = self._buckets[index]
        start = 0 if bucket.alone else index % 2 * self._half
        return slice(start, start + bucket.bytes)

    def free_after(self, index: int) -> int:
        """The bucket that must have been loaded before this one may be written; negative where there is none."""
        return index - 1 if any(bucket.alone for bucket in self._buckets[max(index - 1, 0) : index + 1]) else index - 2


@contextmanager
def on_failure(tell: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Call `tell` where the block raises: the other end need not wait for its deadline."""
    with ExitStack() as failing:
        failing.callback(tell, *arguments)
        yield
        failing.pop_all()
