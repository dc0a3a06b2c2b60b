"""A private nccl group of one learner rank and the engines' workers.

No GPU has run it: `tests/integration/test_nccl_stand_in.py` runs it over gloo, with streams that only know their order.
"""

from __future__ import annotations

import queue
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

from rlhf.errors import Raised, TransferError, catch
from rlhf.weight_sync.store import ROOT
from rlhf.weight_sync.types import Rendezvous

POLL_SECONDS = 0.0005


def nccl_unique_id() -> str:
    """Return the unique id of a new nccl group, in base64: the address at which this process listens for members, and a
    number that they must know."""
    return b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()


class NcclGroup:
    """Membership in the group as `rank`, over vLLM's binding of nccl.

    Broadcasts run on a separate stream, which first waits for the caller's. nccl waits for ever: here the process waits
    for the end of each broadcast with the group's deadline, and leaves the group when that passes. Joining has the same
    deadline.
    """

    def __init__(self, rank: int, rendezvous: Rendezvous, device: torch.device) -> None:
        self.device = device
        self._seconds = rendezvous.timeout_seconds
        self._group: Any = _joined(rank, rendezvous, device)
        if not self._group.available:
            raise TransferError(
                "nccl moves nothing in this process: libnccl is missing, or VLLM_DISABLE_PYNCCL is set; mend that, or "
                "set trainer.weight_sync.backend to gloo"
            )
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._started: deque[Any] = deque()

    def start_broadcast(self, buffer: Tensor) -> None:
        self._begin(lambda stream: self._group.broadcast(buffer, ROOT, stream=stream), buffer)

    def start_barrier(self) -> None:
        operand, answer = (torch.zeros(1, device=self.device) for _ in range(2))
        self._begin(lambda stream: self._group.all_reduce(operand, answer, stream=stream), operand, answer)

    def finish_next(self) -> None:
        (ended, _), deadline = self._started[0], time.monotonic() + self._seconds
        while not ended.query():
            if time.monotonic() > deadline:
                self.close()
                raise TransferError(f"a broadcast failed: a peer is gone, or hangs for {self._seconds:g} s")
            time.sleep(POLL_SECONDS)
        torch.cuda.current_stream(self.device).wait_event(ended)
        self._started.popleft()

    def close(self) -> None:
        if self._group is not None:
            self._group.destroy()
            self._group = None
        self._started.clear()

    def _begin(self, collective: Any, *memory: Tensor) -> None:
        """Start a collective, and hold its `memory` until it is finished: torch would give freed memory to the current
        stream's next tensor, which the collective of the other stream then overwrites."""
        if self._group is None:
            raise TransferError("the transfer group was left")
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        collective(self._stream)
        self._started.append((self._stream.record_event(), memory))


def _joined(rank: int, rendezvous: Rendezvous, device: torch.device) -> Any:
    """Return vLLM's communicator. nccl waits for ever for members, so a thread of its own joins, which is abandoned at
    the deadline. vLLM replaces that thread's current stream."""
    unique_id, seconds = b64decode(rendezvous.address.nccl_id), rendezvous.timeout_seconds
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def join() -> None:
        answers.put(catch(lambda: uid_init_process_group(unique_id, rank, rendezvous.world_size, device.index or 0)))

    threading.Thread(target=join, name="nccl-join", daemon=True).start()
    try:
        joined = answers.get(timeout=seconds)
    except queue.Empty:
        raise TransferError(
            f"joining the transfer group as rank {rank} of {rendezvous.world_size} failed: a peer is gone, or hangs "
            f"for {seconds:g} s"
        ) from None
    if isinstance(joined, Raised):
        raise joined.error
    return joined
