"""The CUDA calls of a weight sync over IPC, in one place: a test replaces them by memory that its threads share.

A handle crosses as JSON. Which classes are made of it is fixed here and not chosen by the sender.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from rlhf.errors import TransferError


def gpu_uuid() -> str:
    """Return the UUID of the current GPU, the same in every process."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def shared_memory(count: int) -> Tensor:
    """Allocate memory on the current GPU, `uint8 [count]`, that may be exported."""
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def export_memory(memory: Tensor) -> str:
    """Return the handle by which one other process may open `memory`."""
    _, arguments = reduce_tensor(memory)  # type: ignore[no-untyped-call]
    _, size, _, _, _, _, _, storage, storage_bytes, offset, _, counter, counter_offset, event, sync = arguments
    return json.dumps(
        [size[0], storage_bytes, offset, counter_offset, storage.hex(), counter.hex(), event.hex(), bool(sync)]
    )


def opened_memory(handle: str) -> Tensor:
    """Open another process's memory on this GPU, until the tensor is freed. Raises `TransferError` for a bad handle."""
    try:
        *numbers, storage, counter, event, sync = json.loads(handle)
        size, storage_bytes, offset, counter_offset = map(int, numbers)
        storage, counter, event = map(bytes.fromhex, (storage, counter, event))
    except (ValueError, TypeError) as error:
        raise TransferError(f"the handle of a GPU's memory is malformed: {error}") from None
    memory: Tensor = rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
        Tensor,
        torch.Size([size]),
        (1,),
        0,
        torch.storage.TypedStorage,
        torch.uint8,
        torch.cuda.current_device(),  # the number of a GPU differs between processes
        storage,
        storage_bytes,
        offset,
        False,
        counter,
        counter_offset,
        event,
        sync is True,
    )
    return memory


def synchronize() -> None:
    """Wait for all work on the current GPU."""
    torch.cuda.synchronize()


def collect() -> None:
    """Free exported memory that its readers have closed."""
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
