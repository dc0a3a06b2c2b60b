"""Write safetensors files tensor by tensor, and read them range by range: no file is ever whole in memory.

The library writes whole files only. A file begins with the length of its header (8 bytes, little-endian) and the
header, a JSON object; the tensors follow in its order. So a writer must know names, dtypes and shapes first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rlhf.errors import CheckpointError
from rlhf.models.lora import HasModel
from rlhf.trainer.rank.snapshot import Create, on_disk
from rlhf.weight_sync import weights
from rlhf.weight_sync.types import TensorSpec

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
    """Writes the tensors of `specs`, in this order, to a new `file`, which `create` opens."""

    def __init__(
        self, file: Path, specs: Sequence[TensorSpec], metadata: Mapping[str, str], create: Create = on_disk
    ) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
        end = 0
        for spec in specs:
            start, end = end, end + spec_bytes(spec)
            header[spec.name] = {"dtype": CODES[spec.dtype], "shape": spec.shape, "data_offsets": [start, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = create(file, 8 + len(text) + end)
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, tensor: Tensor) -> None:
        """Append the next tensor, from any device."""
        flat = tensor.detach().reshape(-1)
        for at in range(0, len(flat), AT_ONCE):
            self._file.write(flat[at : at + AT_ONCE].cpu().view(torch.uint8).numpy().data)

    def close(self) -> None:
        self._file.close()


def spec_bytes(spec: TensorSpec) -> int:
    """Return the size of a tensor's content."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return prod(spec.shape) * dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A one-dimensional tensor of `count` elements in a safetensors `file`."""

    name: str
    file: Path
    count: int

    def read(self, start: int, target: Tensor) -> None:
        """Fill `target`, one-dimensional, with the elements from `start` on, in its own precision and on its device.
        Raises `CheckpointError` for a file that is damaged."""
        with open_tensors(self.file) as content:  # for this range alone: pages of a mapped file count as memory
            stored = content.get_slice(self.name)
            for at in range(0, len(target), AT_ONCE):
                part = target[at : at + AT_ONCE]
                part.copy_(stored[start + at : start + at + len(part)])


def stored_tensors(file: Path) -> tuple[list[StoredTensor], Mapping[str, str]]:
    """Return the tensors of a safetensors file and its metadata. Raises `CheckpointError`."""
    with open_tensors(file) as content:
        counts = {name: prod(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
        return [StoredTensor(name=name, file=file, count=count) for name, count in counts.items()], content.metadata()


@contextmanager
def open_tensors(file: Path) -> Iterator[Any]:
    """Open a safetensors file for reading. Raises `CheckpointError`."""
    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); use another checkpoint") from None


FILE_BYTES = 5 * 10**9
"""Largest file, as transformers cuts them; a larger tensor has its own file."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def export_weights(
    policy: HasModel, folder: Path, bucket_bytes: int, file_bytes: int = FILE_BYTES, create: Create = on_disk
) -> list[Path]:
    """Write every tensor of the model's folder, with adapters merged, and the index where they fill several files.
    Every rank writes its turn of files; returns its own. Collective."""
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    skipped = set(vars(type(policy.model)).get("_keys_to_ignore_on_save") or ())
    specs = [spec for spec in weights.folder_manifest(policy).tensors if spec.name not in skipped]
    groups = cut_files(specs, file_bytes)
    names = [WHOLE] if len(groups) == 1 else [file_name(n, len(groups)) for n in range(len(groups))]
    place = {spec.name: n for n, group in enumerate(groups) for spec in group}
    own = [folder / name for n, name in enumerate(names) if n % ranks == rank]
    with torch.no_grad():
        tensors = weights.folder_tensors(policy, bucket_bytes)
        _write(tensors, place, groups, [folder / name for name in names], own, create)
    if rank == 0 and len(groups) > 1:
        index = {
            "metadata": {"total_size": sum(map(spec_bytes, specs))},
            "weight_map": {name: names[n] for name, n in place.items()},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True))
        own.append(folder / INDEX)
    return own


def cut_files(specs: Sequence[TensorSpec], file_bytes: int) -> list[list[TensorSpec]]:
    """Return the tensors of each file, in order."""
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if groups[-1] and filled + spec_bytes(spec) > file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += spec_bytes(spec)
    return groups


def file_name(number: int, count: int) -> str:
    """Return transformers' name of one of `count` files; `number` counts from 0."""
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors"


def _write(
    tensors: Iterator[tuple[str, Tensor]],
    place: dict[str, int],
    groups: Sequence[Sequence[TensorSpec]],
    files: Sequence[Path],
    own: Sequence[Path],
    create: Create,
) -> None:
    """Write the tensors of this rank's files; it gathers the rest too, since gathering is a collective."""
    writer, opened = None, -1
    for name, tensor in tensors:
        number = place.get(name)
        if number is None or files[number] not in own:
            continue
        if number != opened:
            if writer:
                writer.close()
            writer, opened = TensorWriter(files[number], groups[number], {}, create), number
        assert writer is not None
        writer.write(tensor)
    if writer:
        writer.close()
