"""The learner's side of a weight sync: one sender class per way of sending, with one interface.

All learner ranks iterate over the same tensors, because under ZeRO-3 each step is a collective. A rank with a sender
sends them, every other rank only takes the same steps (`send_or_gather`). A tensor is read before the next
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
from rlhf.transfer.stopwatch import Stopwatch
from rlhf.transfer.store import ROOT
from rlhf.transfer.types import Manifest, Rendezvous, Seconds


class WeightSender(Protocol):
    """Sends weights to engines. `connect` is called once while the engines' workers join, `send` in every weight sync
    while they receive, and `close` at the end.

    `send` returns when every member has the tensors. All raise `TransferError` within the rendezvous' deadline.
    """

    def connect(self, rendezvous: Rendezvous) -> None: ...
    def send(self, tensors: Iterator[tuple[str, Tensor]], manifest: Manifest) -> None: ...
    def close(self) -> None: ...


def only_sender(backend: str) -> int | None:
    """The learner's rank that alone sends with the backend `gloo` or `nccl`; None for `ipc`, where every rank does."""
    engine_backend(backend)
    return None if backend == "ipc" else ROOT


def sender_for(backend: str, rank: int = ROOT) -> WeightSender | None:
    """The sender of a learner's rank for the backend `gloo`, `nccl` or `ipc`; None in a rank that sends nothing."""
    if (only := only_sender(backend)) is None:
        return IpcSender(rank)
    return BroadcastSender() if rank == only else None


def send_or_gather(sender: WeightSender | None, tensors: Iterable[tuple[str, Tensor]], manifest: Manifest) -> Seconds:
    """Send the tensors, or without a sender only take part in gathering them. Returns the seconds of both."""
    watch = Stopwatch()
    gathered = watch.drawn("gather", tensors)
    with watch.timing("both"):
        if sender is None:
            deque(gathered, maxlen=0)
        else:
            sender.send(gathered, manifest)
    spent = watch.taken()
    return {"gather": spent["gather"], "send": spent["both"] - spent["gather"]}
