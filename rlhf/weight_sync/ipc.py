"""A weight sync over CUDA IPC: both ends. Every rank of the learner sends to the engines' workers on its own GPU.

A rank gathers buckets into memory that it shares, and its readers load them from there: one bucket is gathered while
the last is loaded. The memory exists during a weight sync only, and is exported once for each reader, since torch
counts readers by exports. Handles and acknowledgements go through a store at the rendezvous.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta

from torch import Tensor
from torch.distributed import DistNetworkError

from rlhf.errors import TransferError
from rlhf.weight_sync import cuda
from rlhf.weight_sync.buckets import ALIGNMENT, Bucket, cut_buckets, digest, expect_digest, pack_bucket
from rlhf.weight_sync.store import ROOT, open_store
from rlhf.weight_sync.types import Manifest, Rendezvous

FAILED = "a tensor could not be sent or loaded; its own error says why"
LEFT = "rank 0 of the learner, which hosts the exchange of handles, is gone"
NO_SENDER = "-1"


class HandleExchange:
    """One member's end of the exchange: values by key, each written once.

    Raises `TransferError` when a value does not come by the deadline, or the learner's rank 0 is gone.
    """

    def __init__(self, rendezvous: Rendezvous, *, hosts: bool) -> None:
        self._seconds = rendezvous.timeout_seconds
        self._store = open_store(ROOT if hosts else ROOT + 1, rendezvous.address, self._seconds)

    def set(self, key: str, value: str = "") -> None:
        """Write a value."""
        try:
            self._store.set(key, value)
        except DistNetworkError as error:
            raise TransferError(LEFT) from error

    def get(self, key: str) -> str:
        """Wait for a value."""
        try:
            self._store.wait([key], timedelta(seconds=self._seconds))
            return bytes(self._store.get(key)).decode(errors="replace")
        except DistNetworkError as error:
            raise TransferError(LEFT) from error
        except RuntimeError as error:
            raise TransferError(f"{key} did not arrive within {self._seconds:g} s: a peer is gone or hangs") from error

    def wait(self, key: str) -> None:
        """Wait for an acknowledgement. Raises `TransferError` where the other end wrote why it failed."""
        if failure := self.get(key):
            raise TransferError(f"the other end of the weight sync failed: {failure}")

    @contextmanager
    def acknowledging(self, key: str) -> Iterator[None]:
        """Write at once that the block has raised: the other end need not wait for its deadline."""
        with ExitStack() as failing:
            failing.callback(self.set, key, FAILED)
            yield
            failing.pop_all()


class IpcSender:
    """The end of the learner's rank `rank`: a `WeightSender`. A rank without readers only takes part in gathering."""

    def __init__(self, rank: int) -> None:
        self._rank, self._syncs = rank, 0
        self._exchange: HandleExchange | None = None
        self._left: HandleExchange | None = None
        self._readers: tuple[int, ...] = ()

    def connect(self, rendezvous: Rendezvous) -> None:
        self._bucket_bytes = rendezvous.bucket_bytes
        self._exchange = exchange = HandleExchange(rendezvous, hosts=self._rank == ROOT)
        exchange.set(f"gpu/{self._rank}", cuda.gpu_uuid())
        readers = range(1, rendezvous.world_size)
        self._readers = tuple(reader for reader in readers if exchange.get(f"reads/{reader}") == str(self._rank))

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
            self._syncs += 1
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
        for reader in self._readers:
            opening = f"{digest(manifest, self._bucket_bytes).hex()} {cuda.export_memory(memory)}"
            exchange.set(f"{self._syncs}/open/{reader}", opening)
        for index, bucket in enumerate(buckets):
            filled = f"{self._syncs}/{index}/filled/{self._rank}"
            with exchange.acknowledging(filled):
                self._wait_loaded(exchange, halves.free_after(index))
                pack_bucket(bucket, tensors, memory[halves.place(index)])
                cuda.synchronize()
            exchange.set(filled)
        self._wait_loaded(exchange, len(buckets) - 1)
        del memory
        cuda.collect()

    def _wait_loaded(self, exchange: HandleExchange, index: int) -> None:
        """Wait until all readers have loaded the bucket at `index`; nothing for a negative one."""
        for reader in self._readers if index >= 0 else ():
            exchange.wait(f"{self._syncs}/{index}/loaded/{reader}")


class IpcSource:
    """The end of one of an engine's workers: a `BucketSource`. `rank` is that of the reader, from 1."""

    held = 0

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._rank, self._bucket_bytes, self._syncs = rank, rendezvous.bucket_bytes, 0
        self._exchange: HandleExchange | None = HandleExchange(rendezvous, hosts=False)
        self._sender = self._choose_sender(self._exchange, rendezvous.senders)

    def buckets(self, manifest: Manifest) -> Generator[tuple[Bucket, Tensor], None, None]:
        exchange = self._exchange
        if exchange is None:
            raise TransferError("this process left the exchange of handles")
        buckets = cut_buckets(manifest, self._bucket_bytes)
        halves = Halves(buckets)
        with exchange.acknowledging(f"{self._syncs}/0/loaded/{self._rank}"):
            promised, _, handle = exchange.get(f"{self._syncs}/open/{self._rank}").partition(" ")
            expect_digest(promised, manifest, self._bucket_bytes)
            memory = cuda.opened_memory(handle)
        for index, bucket in enumerate(buckets):
            loaded = f"{self._syncs}/{index}/loaded/{self._rank}"
            with exchange.acknowledging(loaded):
                exchange.wait(f"{self._syncs}/{index}/filled/{self._sender}")
                yield bucket, memory[halves.place(index)]
                cuda.synchronize()
            if index == len(buckets) - 1:
                del memory  # before the sender frees it
            exchange.set(loaded)
        self._syncs += 1

    def close(self) -> None:
        self._exchange = None

    def _choose_sender(self, exchange: HandleExchange, senders: int) -> int:
        """Find the one sender on this reader's GPU, and inform all members. Raises `TransferError` for none, or
        several."""
        uuid = cuda.gpu_uuid()
        found = [sender for sender in range(senders) if exchange.get(f"gpu/{sender}") == uuid]
        exchange.set(f"reads/{self._rank}", str(found[0]) if len(found) == 1 else NO_SENDER)
        if len(found) != 1:
            raise TransferError(
                f"{len(found)} ranks of the learner are on GPU {uuid}, where an engine is; ipc needs one: place "
                "them so, or set trainer.weight_sync.backend to nccl"
            )
        return found[0]


class Halves:
    """The places of buckets in shared memory: packed ones take turns in its halves, a larger tensor has all of it."""

    def __init__(self, buckets: Sequence[Bucket]) -> None:
        self._buckets = buckets
        packed = max((bucket.bytes for bucket in buckets if not bucket.alone), default=0)
        self._half = -(-packed // ALIGNMENT) * ALIGNMENT
        self.bytes = max(2 * self._half, max((bucket.bytes for bucket in buckets), default=0), 1)

    def place(self, index: int) -> slice:
        """Return the bytes of the bucket with this index."""
        bucket = self._buckets[index]
        start = 0 if bucket.alone else index % 2 * self._half
        return slice(start, start + bucket.bytes)

    def free_after(self, index: int) -> int:
        """Return the bucket that must have been loaded before this one may be written; negative where there is none."""
        return index - 1 if any(bucket.alone for bucket in self._buckets[max(index - 1, 0) : index + 1]) else index - 2
