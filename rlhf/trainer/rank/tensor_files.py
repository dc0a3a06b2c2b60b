"""safetensors files that are written tensor by tensor, and read range by range: no file is ever whole in memory.

A file begins with the length of its header (8 bytes, little-endian) and the header, a JSON object; the tensors follow
in its order. So a writer must know names, dtypes and shapes first, and content later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import CheckpointError
from rlhf.transfer.types import TensorSpec

CODES = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The format's names of torch's dtypes."""
AT_ONCE = 2**24
"""Elements that are copied at once: 64 MiB in float32."""


class TensorWriter:
    """Writes the tensors of `specs`, in this order, to a new `file`."""

    def __init__(self, file: Path, specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
        end = 0
        for spec in specs:
            start, end = end, end + spec_bytes(spec)
            header[spec.name] = {"dtype": CODES[spec.dtype], "shape": spec.shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, tensor: Tensor) -> None:
        """Append the next tensor, from any device."""
        flat = tensor.detach().reshape(-1)
        for at in range(0, len(flat), AT_ONCE):
            self._file.write(flat[at : at + AT_ONCE].cpu().view(torch.uint8).numpy().data)

    def close(self) -> None:
        self._file.close()


def spec_bytes(spec: TensorSpec) -> int:
    """The size of a tensor's content."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return prod(spec.shape) * dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor lies: its content begins at byte `offset` of `file`."""

    name: str
    file: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return prod(self.shape)

    def read(self, start: int, target: Tensor) -> None:
        """Fill `target`, one-dimensional, with the elements from `start` on, in its own precision and on its device.
        Raises `CheckpointError` for a file that is cut short."""
        with self.file.open("rb") as content:
            for at in range(0, len(target), AT_ONCE):
                part = target[at : at + AT_ONCE]
                read = torch.empty(len(part), dtype=self.dtype)
                content.seek(self.offset + (start + at) * self.dtype.itemsize)
                wanted = read.view(torch.uint8).numpy()
                if content.readinto(wanted.data) != len(wanted):
                    raise CheckpointError(f"{self.file} is cut short; use another checkpoint")
                part.copy_(read)


def stored_tensors(file: Path) -> tuple[Iterator[StoredTensor], Mapping[str, str]]:
    """The tensors of a safetensors file, and its metadata, from its header. Raises `CheckpointError`."""
    try:
        with file.open("rb") as content:
            length = int.from_bytes(content.read(8), "little")
            header = json.loads(content.read(min(length, os.fstat(content.fileno()).st_size)))
            metadata = header.pop("__metadata__", {})
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); use another checkpoint") from None
    dtypes: dict[str, torch.dtype] = {code: getattr(torch, name) for name, code in CODES.items()}
    found = (
        StoredTensor(
            name=name,
            file=file,
            offset=8 + length + one["data_offsets"][0],
            dtype=dtypes[one["dtype"]],
            shape=tuple(one["shape"]),
        )
        for name, one in header.items()
    )
    return found, metadata
