"""The learner's end of a weight sync.

All learner ranks iterate over the same tensors, because under ZeRO-3 each step is a collective. A rank that sends reads
a tensor before it requests the next one, so an iterator may gather and free tensors one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack

from torch import Tensor

from rlhf.weight_sync.broadcast import BroadcastSender
from rlhf.weight_sync.ipc import IpcSender
from rlhf.weight_sync.stopwatch import Stopwatch
from rlhf.weight_sync.store import ROOT
from rlhf.weight_sync.types import Manifest, Rendezvous, Seconds, engine_backend

WeightSender = BroadcastSender | IpcSender
"""Sends weights to engines. `connect` is called while the engines' workers join, `send` in every weight sync while they
receive, and `close` at the end. All raise `TransferError` within the rendezvous' deadline."""


class RankSender:
    """The end of one learner rank: it sends, or only takes part in gathering what another rank sends."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._sender: WeightSender | None = None

    def connect(self, rendezvous: Rendezvous) -> None:
        """Join the engines. Ranks that do not send have nothing to join."""
        self.close()
        self._sender = sender_for(rendezvous.backend, self._rank)
        if self._sender is not None:
            self._sender.connect(rendezvous)

    def send(self, tensors: Iterable[tuple[str, Tensor]], manifest: Manifest) -> Seconds:
        """Send the tensors, or take part in gathering them. Returns the seconds of `gather` and `send`."""
        watch = Stopwatch()
        gathered = watch.drawn("gather", tensors)
        with watch.timing("both"):
            if self._sender is None:
                deque(gathered, maxlen=0)
            else:
                with ExitStack() as failing:
                    failing.callback(deque, gathered, maxlen=0)  # the other ranks gather to the end
                    self._sender.send(gathered, manifest)
                    failing.pop_all()
        spent = watch.taken()
        return {"gather": spent["gather"], "send": spent["both"] - spent["gather"]}

    def close(self) -> None:
        """Leave the engines."""
        if self._sender is not None:
            self._sender.close()


def sender_for(backend: str, rank: int = ROOT) -> WeightSender | None:
    """Return the sender of a learner's rank for a backend. With `ipc` every rank sends, with `gloo` and `nccl` rank 0;
    None in a rank that sends nothing. Raises `TransferError` for an unknown backend."""
    engine_backend(backend)
    if backend == "ipc":
        return IpcSender(rank)
    return BroadcastSender() if rank == ROOT else None
