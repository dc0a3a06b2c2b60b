"""CUDA's handle calls over memory of this process: members of a weight sync over IPC are threads, and share it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from rlhf.weight_sync import cuda

HERE = threading.local()


def on_gpu(uuid: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, made in a process on this GPU."""

    def made() -> Any:
        HERE.gpu = uuid
        return call()

    return made


class SharedGpus:
    """Exported memory by its handle. `exports` counts those of each piece; `opened` are what readers still hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: dict[bytes, Tensor] = {}
        self.exports: list[int] = []
        self.opened: WeakSet[Tensor] = WeakSet()
        self.open_at_collect: list[int] = []
        monkeypatch.setattr(cuda, "gpu_uuid", lambda: HERE.gpu)
        monkeypatch.setattr(cuda, "shared_memory", lambda count: torch.empty(count, dtype=torch.uint8))
        monkeypatch.setattr(cuda, "reduce_tensor", self.reduce)
        monkeypatch.setattr(cuda, "rebuild_cuda_tensor", self.rebuild)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
        monkeypatch.setattr(cuda, "synchronize", lambda: None)
        monkeypatch.setattr(cuda, "collect", lambda: self.open_at_collect.append(len(self.opened)))

    def reduce(self, memory: Tensor) -> tuple[Any, tuple[Any, ...]]:
        handle = len(self.exports).to_bytes(64, "big")
        self.exports.append(memory.data_ptr())
        self.memory[handle] = memory
        return None, (
            torch.Tensor, memory.shape, (1,), 0, torch.storage.TypedStorage, torch.uint8, 0, handle, memory.numel(), 0,
            False, b"counter", 0, b"\x00" * 64, True,
        )  # fmt: skip

    def rebuild(self, *arguments: Any) -> Tensor:
        _, size, _, _, _, dtype, device, handle, *_ = arguments
        assert (dtype, device) == (torch.uint8, 5), "a reader opens memory on its own GPU"
        opened = self.memory.pop(handle).view(size)  # an export may be opened once
        self.opened.add(opened)
        return opened
