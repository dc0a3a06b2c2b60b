"""Moves the bytes of tensors off their device and back, in place: storages are emptied and refilled. Views on one keep
their shape, stride and place. Nothing may read or write such a tensor meanwhile, nor make a view of it."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO

import torch
from torch import Tensor, UntypedStorage

from rlhf.models.torch_internals import storage_key

CHUNK_BYTES = 256 << 20
"""Pinned memory is allocated in powers of two: of the pieces of this size only the last is rounded."""
SMALLEST_BYTES = 4096
"""Smaller storages (counters, norms) stay where they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Emptied:
    """An emptied storage: its size, and its bytes where they are wanted again."""

    storage: UntypedStorage
    bytes: int
    copy: HostCopy | None


class OffloadedStorages:
    """The storages that are emptied now."""

    def __init__(self) -> None:
        self._emptied: dict[int, Emptied] = {}

    def offload(self, tensors: Iterable[Tensor], *, keep: Iterable[Tensor] = (), contents: bool = True) -> int:
        """Empty the storages of `tensors`, except for those of `keep`, small ones and shared ones of a file; without
        `contents` their bytes are dropped. Returns the number of bytes that are free."""
        staying = {storage_key(tensor) for tensor in keep}
        leaving = [tensor for tensor in tensors if storage_key(tensor) not in staying]
        own_storages(leaving)
        large = [tensor for tensor in leaving if _size(tensor) >= SMALLEST_BYTES]
        storages = ((storage_key(tensor), tensor.untyped_storage()) for tensor in large)
        chosen = {key: storage for key, storage in storages if storage.resizable()}
        copies = copied(chosen) if contents else {}
        wait_for_copies(chosen.values())
        for key, storage in chosen.items():
            self._emptied[key] = Emptied(storage, storage.nbytes(), copies.get(key))
            storage.resize_(0)
        return sum(self._emptied[key].bytes for key in chosen)

    def restore(self, tensors: Iterable[Tensor] | None = None) -> None:
        """Fill the storages of these tensors, by default all, as they were. Bytes that were dropped are zero."""
        keys = list(self._emptied) if tensors is None else list({storage_key(tensor) for tensor in tensors})
        back = [self._emptied.pop(key) for key in keys if key in self._emptied]
        for emptied in back:
            emptied.storage.resize_(emptied.bytes)
            if emptied.copy is None:
                storage_bytes(emptied.storage).zero_()
            else:
                emptied.copy.write_to(emptied.storage)
        wait_for_copies(emptied.storage for emptied in back)


def own_storages(tensors: Iterable[Tensor]) -> None:
    """Give tensors a storage of torch's own where theirs cannot be resized and no other tensor is on it. Weights that
    were loaded from a file are such, and one norm that stayed in the file's mapping would keep all of its pages."""
    users: dict[int, dict[int, Tensor]] = {}
    for tensor in tensors:
        if not tensor.untyped_storage().resizable():
            users.setdefault(storage_key(tensor), {})[id(tensor)] = tensor
    for sharing in users.values():
        tensor, *others = sharing.values()
        if not others and tensor.nbytes == _size(tensor):
            tensor.data = tensor.data.clone()


def copied(storages: Mapping[int, UntypedStorage]) -> dict[int, HostCopy]:
    """Copy storages to host memory; storages in host memory share one unnamed file."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed, and with that removed, with the last copy in it
    return {
        key: InFile(storage, file) if storage.device.type == "cpu" else InHostMemory(storage)
        for key, storage in storages.items()
    }


class InHostMemory:
    """A copy in host memory, pinned where there is a GPU; it is complete when the device is synchronised."""

    def __init__(self, storage: UntypedStorage) -> None:
        pinned = storage.device.type == "cuda"
        self._copies = []
        for chunk in _chunks(storage):
            host = torch.empty(chunk.numel(), dtype=torch.uint8, pin_memory=pinned)
            self._copies.append(host.copy_(chunk, non_blocking=True))

    def write_to(self, storage: UntypedStorage) -> None:
        for chunk, host in zip(_chunks(storage), self._copies, strict=True):
            chunk.copy_(host, non_blocking=True)


class InFile:
    """A copy at the end of a file that is open for reading and writing."""

    def __init__(self, storage: UntypedStorage, file: IO[bytes]) -> None:
        self._file, self._begin = file, file.seek(0, os.SEEK_END)
        file.write(_memory(storage))

    def write_to(self, storage: UntypedStorage) -> None:
        self._file.seek(self._begin)
        self._file.readinto(_memory(storage))  # type: ignore[attr-defined]


HostCopy = InHostMemory | InFile
"""The bytes of a storage, elsewhere."""


def storage_bytes(storage: UntypedStorage) -> Tensor:
    """All bytes of a storage, as a tensor on it."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _chunks(storage: UntypedStorage) -> tuple[Tensor, ...]:
    return torch.split(storage_bytes(storage), CHUNK_BYTES)


def _memory(storage: UntypedStorage) -> memoryview:
    """Return the storage's bytes. A numpy array would do, but torch never resizes a storage that has been one."""
    return memoryview((ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")


def wait_for_copies(storages: Iterable[UntypedStorage]) -> None:
    """Wait for copies from and to these storages."""
    if any(storage.device.type == "cuda" for storage in storages):
        torch.cuda.synchronize()


def give_back(device: str) -> None:
    """Return freed memory to the driver, or to the system: allocators keep it for themselves."""
    if device == "cpu":
        ctypes.CDLL(None).malloc_trim(0)
    else:
        torch.cuda.empty_cache()


def _size(tensor: Tensor) -> int:
    return 0 if tensor.device.type == "meta" else tensor.untyped_storage().nbytes()
