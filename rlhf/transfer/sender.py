"""The learner's side of a weight sync: one sender class per way of sending, with one interface.

All learner ranks iterate over the same tensors, because under ZeRO-3 each step is a collective. A rank with a sender
calls `sender.send(tensors, manifest)`, every other rank calls `gather_only(tensors)`. A tensor is read before the next
one is requested, so an iterator may gather and free tensors one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from rlhf.transfer.broadcast import BroadcastSender
from rlhf.transfer.init_info import engine_backend
from rlhf.transfer.ipc import IpcSender
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


def sender_for(backend: str, rank: int = ROOT) -> WeightSender | None:
    """The sender of a learner's rank for the backend `gloo`, `nccl` or `ipc`: ipc has one in every rank, the others in
    rank 0 alone."""
    engine_backend(backend)
    if backend == "ipc":
        return IpcSender(rank)
    return BroadcastSender() if rank == ROOT else None


def gather_only(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Take part in gathering without sending anything."""
    deque(tensors, maxlen=0)
