"""The CUDA calls of a weight sync over IPC, in one place: a test replaces them by memory that its threads share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from rlhf.transfer.handles import Handle, arguments_of, handle_of

DEVICE_ARGUMENT = 6
"""Its place in the arguments of `rebuild_cuda_tensor`. Processes number their GPUs on their own."""


def gpu_uuid() -> str:
    """The UUID of the current GPU, the same in every process."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def shared_memory(count: int) -> Tensor:
    """New memory on the current GPU, `uint8 [count]`, that may be exported."""
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def export_memory(memory: Tensor) -> Handle:
    """The handle by which one other process may open `memory`."""
    return handle_of(reduce_tensor(memory)[1])  # type: ignore[no-untyped-call]


def opened_memory(handle: Handle) -> Tensor:
    """Memory of another process on this GPU, until the tensor is freed."""
    arguments = list(arguments_of(handle))
    arguments[DEVICE_ARGUMENT] = torch.cuda.current_device()
    memory: Tensor = rebuild_cuda_tensor(*arguments)  # type: ignore[no-untyped-call]
    return memory


def synchronize() -> None:
    """Wait for all work on the current GPU."""
    torch.cuda.synchronize()


def collect() -> None:
    """Free exported memory that its readers have closed."""
    torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
