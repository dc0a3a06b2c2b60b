"""The group of a weight sync as sender and receivers see it, whatever library moves the bytes."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlhf.transfer.types import Rendezvous


class Communicator(Protocol):
    """One member's place in the group: rank 0 sends, the others receive. Buffers lie on `device`.

    What was started is finished in the same order, by `finish_next`: only then may the current stream read a buffer, or
    anything write to it. Every call ends within the group's deadline, with a
    `TransferError` when a member is gone or hangs.
    """

    device: torch.device

    def start_broadcast(self, buffer: Tensor) -> None:
        """Start to send (rank 0) or receive `buffer` in place, after the work that the current stream has queued."""
        ...

    def start_meeting(self) -> None:
        """Start a barrier: it ends when every member has started it."""
        ...

    def finish_next(self) -> None:
        """Wait for the oldest of what was started."""
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
