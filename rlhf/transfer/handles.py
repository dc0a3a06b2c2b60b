"""Exchanges CUDA IPC handles between learner and engines: handles in one direction, acknowledgements in the other.

A handle has a few hundred bytes. It is sent through a signed store on the rendezvous' port, as JSON that is validated.
Both ends are processes of one run.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from torch.distributed import DistNetworkError

from rlhf.errors import TransferError
from rlhf.transfer.store import ROOT, open_store
from rlhf.transfer.types import Rendezvous

Hexadecimal = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2})*$", max_length=1024)]
Size = Annotated[int, Field(ge=0, lt=2**63)]


class _Values(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Handle(_Values):
    """One byte buffer on a GPU, as CUDA shares it."""

    bytes: Size
    device: Size
    storage_handle: Hexadecimal
    storage_bytes: Size
    storage_offset: Size
    counter_handle: Hexadecimal
    counter_offset: Size
    event_handle: Hexadecimal
    event_sync_required: bool


class SyncStart(_Values):
    """The start of a weight sync for one reader: what will come, as a digest, and the memory that it comes in."""

    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    handle: Handle


def handle_of(arguments: tuple[Any, ...]) -> Handle:
    """The handle from the arguments that torch's `reduce_tensor` returns for a byte buffer."""
    _, size, _, _, _, _, device, storage, storage_bytes, offset, _, counter, counter_offset, event, sync = arguments
    return Handle(
        bytes=size[0],
        device=device,
        storage_handle=storage.hex(),
        storage_bytes=storage_bytes,
        storage_offset=offset,
        counter_handle=counter.hex(),
        counter_offset=counter_offset,
        event_handle=event.hex(),
        event_sync_required=sync,
    )


def arguments_of(handle: Handle) -> tuple[Any, ...]:
    """The reverse: arguments for torch's `rebuild_cuda_tensor`. Their classes are fixed here and not chosen by the
    sender."""
    return (
        torch.Tensor,
        torch.Size([handle.bytes]),
        (1,),
        0,
        torch.storage.TypedStorage,
        torch.uint8,
        handle.device,
        bytes.fromhex(handle.storage_handle),
        handle.storage_bytes,
        handle.storage_offset,
        False,
        bytes.fromhex(handle.counter_handle),
        handle.counter_offset,
        bytes.fromhex(handle.event_handle),
        handle.event_sync_required,
    )


NONE = -1
"""The number of no sender."""
LEFT = "rank 0 of the learner, which keeps the exchange of handles, is gone"


class HandleExchange:
    """One member's end of the exchange, for a sender (a rank of the learner) or a reader (an engine's worker).

    At first the senders tell their GPUs, and each reader chooses the sender on its own. In a weight sync a sender opens
    its memory to its readers, tells which buckets are filled, and waits until they are loaded. Raises `TransferError`
    when the other side misses the deadline or has failed, or a value in the exchange has no valid signature.
    """

    def __init__(self, rendezvous: Rendezvous, *, hosts: bool) -> None:
        self._rendezvous, self._syncs = rendezvous, 0
        self._readers = range(1, rendezvous.world_size)
        rank = ROOT if hosts else 1
        self._store = open_store(
            rank, rendezvous.address, rendezvous.port, rendezvous.secret, rendezvous.timeout_seconds
        )

    def tell_gpu(self, sender: int, uuid: str) -> None:
        """Tell the readers which GPU this sender is on."""
        self._tell(f"gpu/{sender}", uuid)

    def choose_sender(self, reader: int, uuid: str) -> int:
        """The one sender on this reader's GPU; all are told. Raises `TransferError` where there is none, or several."""
        found = [n for n in range(self._rendezvous.senders) if self._heard(f"gpu/{n}").decode() == uuid]
        self._tell(f"reads/{reader}", str(found[0] if len(found) == 1 else NONE))
        if len(found) != 1:
            raise TransferError(
                f"{len(found)} ranks of the learner are on GPU {uuid}, where an engine is; ipc needs one: place "
                "them so, or set trainer.weight_sync.backend to nccl"
            )
        return found[0]

    def readers_of(self, sender: int) -> tuple[int, ...]:
        """The readers on this sender's GPU."""
        return tuple(reader for reader in self._readers if int(self._heard(f"reads/{reader}")) == sender)

    def open(self, reader: int, opening: SyncStart) -> None:
        """Begin a weight sync for one reader."""
        self._tell(f"{self._syncs}/open/{reader}", opening.model_dump_json())

    def opening(self, reader: int) -> SyncStart:
        """The beginning of the next weight sync."""
        try:
            return SyncStart.model_validate_json(self._heard(f"{self._syncs}/open/{reader}"), strict=True)
        except ValidationError as error:
            raise TransferError(f"an offer of handles makes no sense: {error.errors()[0]['msg']}") from None

    def tell_filled(self, bucket: int, sender: int, failure: str = "") -> None:
        """The bucket is in the memory; or it never will be, for this reason."""
        self._tell(f"{self._syncs}/{bucket}/filled/{sender}", failure)

    def wait_filled(self, bucket: int, sender: int) -> None:
        """Wait until the sender has filled the bucket."""
        self._expect(f"{self._syncs}/{bucket}/filled/{sender}")

    def tell_loaded(self, bucket: int, reader: int, failure: str = "") -> None:
        """The reader has loaded the bucket and does not read it again; or it failed, for this reason."""
        self._tell(f"{self._syncs}/{bucket}/loaded/{reader}", failure)

    def wait_loaded(self, bucket: int, readers: Iterable[int]) -> None:
        """Wait until these readers have loaded the bucket; there is none before the first."""
        for reader in readers if bucket >= 0 else ():
            self._expect(f"{self._syncs}/{bucket}/loaded/{reader}")

    def end(self) -> None:
        """This end of a weight sync is over."""
        self._syncs += 1

    def _expect(self, key: str) -> None:
        failure = self._heard(key).decode()
        if failure:
            raise TransferError(f"the other end of the weight sync failed: {failure}")

    def _heard(self, key: str) -> bytes:
        try:
            self._store.wait([key], timedelta(seconds=self._rendezvous.timeout_seconds))
            return self._store.get(key)
        except DistNetworkError as error:
            raise TransferError(LEFT) from error
        except RuntimeError as error:
            raise TransferError(
                f"{key} did not come within {self._rendezvous.timeout_seconds:g} s: a peer is gone or hangs"
            ) from error

    def _tell(self, key: str, value: str) -> None:
        try:
            self._store.set(key, value)
        except DistNetworkError as error:
            raise TransferError(LEFT) from error
