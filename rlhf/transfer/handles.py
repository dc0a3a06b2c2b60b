"""Exchanges CUDA IPC handles between learner and engines: handles in one direction, acknowledgements in the other.

A handle has a few hundred bytes. It is sent through a signed store on the rendezvous' port, as JSON that is validated.
Both ends are processes of one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

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


class Chunk(_Values):
    """The tensors that are currently in the buffer, and its handle by the GPU's UUID."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[Size]]
    tensor_sizes: list[Size]
    handles: dict[str, Handle]


class Offer(_Values):
    """One message of the learner; without a chunk it is the last one of a weight sync."""

    chunk: Chunk | None


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


class HandleExchange:
    """One member's end of the exchange. The learner (rank 0) sends chunks with `offer` and waits until all others have
    loaded each; an engine's worker receives them with `chunks`. Raises `TransferError` when the other side misses the
    deadline, or a value in the exchange has no valid signature."""

    def __init__(self, rank: int, rendezvous: Rendezvous) -> None:
        self._rank, self._rendezvous, self._count = rank, rendezvous, 0
        self._store = open_store(
            rank, rendezvous.address, rendezvous.port, rendezvous.secret, rendezvous.timeout_seconds
        )

    def offer(self, chunk: Chunk | None) -> None:
        """Publish one chunk and wait until every worker has loaded it."""
        self._store.set(f"{self._count}/offer", Offer(chunk=chunk).model_dump_json())
        for rank in range(self._rendezvous.world_size):
            if rank != ROOT:
                self._heard(f"{self._count}/taken/{rank}")
        self._count += 1

    def end(self) -> None:
        """Tell the engines that this weight sync has no more chunks."""
        self.offer(None)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks of one weight sync; requesting the next one acknowledges the last."""
        while True:
            chunk = self._offered()
            if chunk is not None:
                yield chunk
            self._store.set(f"{self._count}/taken/{self._rank}", "")
            self._count += 1
            if chunk is None:
                return

    def _offered(self) -> Chunk | None:
        try:
            return Offer.model_validate_json(self._heard(f"{self._count}/offer"), strict=True).chunk
        except ValidationError as error:
            raise TransferError(f"an offer of handles makes no sense: {error.errors()[0]['msg']}") from None

    def _heard(self, key: str) -> bytes:
        try:
            self._store.wait([key], timedelta(seconds=self._rendezvous.timeout_seconds))
        except RuntimeError as error:
            raise TransferError(
                f"handle {key} did not come within {self._rendezvous.timeout_seconds:g} s: a peer is gone or hangs"
            ) from error
        return self._store.get(key)
