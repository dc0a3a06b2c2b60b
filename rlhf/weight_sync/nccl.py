"""A private nccl group of one learner rank and the engines' workers.

No GPU has run it: `tests/integration/test_nccl_stand_in.py` runs it over gloo, with streams that only know their order.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistError
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary
from vllm.distributed.weight_transfer.nccl_common import uid_init_process_group

from rlhf.errors import Raised, TransferError, catch
from rlhf.weight_sync.store import GIVEN_UP, ROOT, open_store
from rlhf.weight_sync.types import Rendezvous

POLL_SECONDS = 0.0005
WATCH_SECONDS = 0.25


def nccl_unique_id() -> str:
    """Return the unique id of a new nccl group, in base64: the address at which this process listens for members, and a
    number that they must know."""
    return b64encode(bytes(NCCLLibrary().ncclGetUniqueId().internal)).decode()


class NcclGroup:
    """Membership in the group as `rank`, over vLLM's binding of nccl.

    Broadcasts run on a separate stream, which first waits for the caller's. nccl waits forever: here the process waits
    for the end of each broadcast with the group's deadline, and leaves the group when that passes, or when the group is
    given up: nccl does not notice a peer's death, and this process may serve no other call meanwhile. Joining is the
    same.
    """

    def __init__(self, rank: int, rendezvous: Rendezvous, device: torch.device) -> None:
        self.device = device
        self._seconds = rendezvous.timeout_seconds
        self._over = threading.Event()
        self._started: deque[Any] = deque()
        self._group: Any = None
        self._group = self._joined(rank, rendezvous)
        if not self._group.available:
            raise TransferError(
                "nccl does not work in this process: libnccl is missing, or VLLM_DISABLE_PYNCCL is set; correct "
                "that, or set trainer.weight_sync.backend to gloo"
            )
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def start_broadcast(self, buffer: Tensor) -> None:
        self._begin(lambda stream: self._group.broadcast(buffer, ROOT, stream=stream), buffer)

    def start_barrier(self) -> None:
        operand, answer = (torch.zeros(1, device=self.device) for _ in range(2))
        self._begin(lambda stream: self._group.all_reduce(operand, answer, stream=stream), operand, answer)

    def finish_next(self) -> None:
        ended, _ = self._started[0]
        self._await(ended.query, "a broadcast")
        torch.cuda.current_stream(self.device).wait_event(ended)
        self._started.popleft()

    def close(self) -> None:
        self._over.set()
        if self._group is not None:
            self._group.destroy()
            self._group = None
        self._started.clear()

    def _begin(self, collective: Any, *memory: Tensor) -> None:
        """Start a collective, and hold its `memory` until it is finished: torch would give freed memory to the current
        stream's next tensor, which the collective of the other stream then overwrites."""
        if self._group is None:
            raise TransferError("this process left the transfer group")
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        collective(self._stream)
        self._started.append((self._stream.record_event(), memory))

    def _joined(self, rank: int, rendezvous: Rendezvous) -> Any:
        """Return vLLM's communicator. nccl waits forever for members, so a separate thread joins, which is abandoned if
        they do not come. vLLM replaces that thread's current stream."""
        joining, unique_id = f"joining as rank {rank} of {rendezvous.world_size}", b64decode(rendezvous.address.nccl_id)
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def join() -> None:
            size, index = rendezvous.world_size, self.device.index or 0
            answers.put(catch(lambda: uid_init_process_group(unique_id, rank, size, index)))

        try:
            store = open_store(rank, rendezvous.address, self._seconds)
        except DistError as error:
            raise TransferError(f"{joining} failed: rank {ROOT} is gone, or hangs for {self._seconds:g} s") from error
        watching = threading.Thread(target=_watch, args=(store, self._over), name="nccl-watch", daemon=True)
        watching.start()
        atexit.register(_end, watching, self._over)
        threading.Thread(target=join, name="nccl-join", daemon=True).start()
        self._await(lambda: not answers.empty(), joining)
        joined = answers.get()
        if isinstance(joined, Raised):
            self.close()
            raise joined.error
        return joined

    def _await(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self._seconds
        while not done():
            late = time.monotonic() > deadline
            if late or self._over.is_set():
                self.close()
                reason = f"a peer is gone, or hangs for {self._seconds:g} s" if late else "the transfer was given up"
                raise TransferError(f"{what} failed: {reason}")
            time.sleep(POLL_SECONDS)


def _watch(store: Any, over: threading.Event) -> None:
    """Set `over` when the group is given up. The store of a rank 0 that is stopped answers nothing, so who waits for
    a broadcast does not ask it."""
    with suppress(DistError):  # rank 0 has left, and its store with it
        while not over.wait(WATCH_SECONDS) and not store.check([GIVEN_UP]):
            pass
    over.set()


def _end(watching: threading.Thread, over: threading.Event) -> None:
    """End the thread before Python ends: a daemon thread that is in the store's C++ then aborts the process."""
    over.set()
    watching.join(1)
