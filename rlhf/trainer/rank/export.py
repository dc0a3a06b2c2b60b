"""Model folders, written while the weights stream by: a file is one rank's to write, and never whole in its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed
from torch import Tensor

from rlhf.models.lora import HasModel
from rlhf.trainer.rank.tensor_files import TensorWriter, spec_bytes
from rlhf.weight_sync import weights
from rlhf.weight_sync.types import TensorSpec

FILE_BYTES = 5 * 10**9
"""Largest file, as transformers cuts them; a larger tensor has its own file."""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def export_weights(policy: HasModel, folder: Path, bucket_bytes: int, file_bytes: int = FILE_BYTES) -> list[Path]:
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
        _write(weights.folder_tensors(policy, bucket_bytes), place, groups, [folder / name for name in names], own)
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
) -> None:
    """Write the tensors that lie in own files; the rest only passes by, since gathering is a collective."""
    writer, opened = None, -1
    for name, tensor in tensors:
        number = place.get(name)
        if number is None or files[number] not in own:
            continue
        if number != opened:
            if writer:
                writer.close()
            writer, opened = TensorWriter(files[number], groups[number], {}), number
        assert writer is not None
        writer.write(tensor)
    if writer:
        writer.close()
