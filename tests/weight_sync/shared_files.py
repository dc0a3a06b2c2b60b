"""CUDA's handle calls over memory that processes share: a buffer is a mapped file, its handle the file's name."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.weight_sync import cuda

DEVICE = 3
"""The number that a process has for its GPU. The other end's is another."""


def stand_on_gpu(gpu: str, folder: Path, device: int = DEVICE) -> None:
    """From here on this process is on the GPU with this UUID, whose memory is `folder/gpu`: what another GPU exported
    cannot be opened."""
    memory = folder / gpu
    memory.mkdir(exist_ok=True)
    made: dict[int, Path] = {}

    def shared_memory(count: int) -> Tensor:
        file = memory / uuid.uuid4().hex
        shared = torch.from_file(str(file), shared=True, size=count, dtype=torch.uint8)
        made[shared.data_ptr()] = file
        return shared

    def reduce_tensor(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
        name = made[tensor.data_ptr()].name.encode()
        return None, (
            torch.Tensor, tensor.shape, (1,), 0, torch.storage.TypedStorage, torch.uint8, device, name, tensor.numel(),
            0, False, b"counter", 0, b"\x00" * 64, True,
        )  # fmt: skip

    def rebuild_cuda_tensor(*arguments: Any) -> Tensor:
        _, size, _, _, _, dtype, opened_on, name, *_ = arguments
        assert (dtype, opened_on) == (torch.uint8, device), "a reader opens memory on its own GPU"
        file = memory / name.decode()
        assert file.stat().st_size == size[0], f"{gpu} has no such memory"
        return torch.from_file(str(file), shared=True, size=size[0], dtype=torch.uint8)

    def collect() -> None:
        for file in made.values():
            file.unlink()
        made.clear()

    cuda.gpu_uuid = lambda: gpu
    cuda.shared_memory = shared_memory
    cuda.reduce_tensor = reduce_tensor
    cuda.rebuild_cuda_tensor = rebuild_cuda_tensor
    cuda.synchronize = lambda: None
    cuda.collect = collect
    torch.cuda.current_device = lambda: device
