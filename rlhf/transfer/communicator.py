"""The group of a weight sync as sender and receivers see it, whatever library moves the bytes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlhf.transfer.types import Rendezvous


class Communicator(Protocol):
    """One member's place in the group: rank 0 sends, the others receive. Buffers lie on `device`.

    Broadcasts may overlap with other work: only after `finish_broadcasts` may the current stream read their buffers, or
    anything write to them. Every call ends within the group's deadline, with a
    `TransferError` when a member is gone or hangs.
    """

    device: torch.device

    def start_broadcast(self, buffer: Tensor) -> None:
        """Start to send (rank 0) or receive `buffer` in place, after the work that the current stream has queued."""
        ...

    def finish_broadcasts(self) -> None:
        """Wait for all broadcasts that were started."""
        ...

    def meet(self) -> None:
        """Wait until every member has called this (a barrier)."""
        ...

    def close(self) -> None:
        """Leave at once, so that the others notice."""
        ...


def join_group(rank: int, rendezvous: Rendezvous) -> Communicator:
    """Join the group of the rendezvous' backend, `gloo` or `nccl` (on the current CUDA device). Raises `TransferError`
    where the others do not join in time, or the backend is not available."""
    if rendezvous.backend == "gloo":
        from rlhf.transfer.gloo_group import GlooGroup

        return GlooGroup(rank, rendezvous)
    # Importing it imports vLLM.
    from rlhf.transfer.nccl_group import NcclGroup

    return NcclGroup(rank, rendezvous, torch.device("cuda", torch.cuda.current_device()))
