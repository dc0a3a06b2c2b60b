"""Reads names and shapes of a folder's tensors from the headers of its safetensors files, without torch.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header: a JSON object of
`{"dtype", "shape", "data_offsets"}` by tensor name. Offsets count from the end of the header.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.models.folder import Values, read_json_object

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor shapes by tensor name."""
SAFETENSORS, PICKLES = "model.safetensors", "pytorch_model.bin"
LENGTH_BYTES = 8


def tensor_shapes(folder: Path) -> Shapes | None:
    """Shapes of all tensors that transformers would load from `folder`. None if it has only `.bin` files, which cannot
    be read without torch. Raises `ModelError` for a folder without weights, and for missing or damaged files."""
    named = read_json_object(folder / "config.json").get("transformers_weights")
    for name in (named, SAFETENSORS, f"{SAFETENSORS}.index.json", PICKLES, f"{PICKLES}.index.json"):
        if isinstance(name, str) and (folder / name).exists():
            if ".bin" in name:
                return None
            files = _parts(folder / name) if name.endswith(".json") else [folder / name]
            return {tensor: shape for file in files for tensor, shape in _header(file).items()}
    raise ModelError(
        f"{folder} has no weights ({SAFETENSORS}, {PICKLES}, or the .index.json of several such files); "
        "model.path must be a whole model folder"
    )


def parameters(shapes: Shapes) -> int:
    """Number of weights; tied weights are stored, and so counted, once."""
    return sum(prod(shape) for shape in shapes.values())


def _parts(index: Path) -> list[Path]:
    files = read_json_object(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelError(f"{index} has no weight_map; download the model again")
    return [index.parent / str(name) for name in sorted(set(files.values()))]


def _header(file: Path) -> Shapes:
    try:
        size = file.stat().st_size
        with file.open("rb") as content:
            length = int.from_bytes(content.read(LENGTH_BYTES), "little")
            # Other files have no valid length here, for instance git-lfs's pointer to the real file.
            written = content.read(length) if length <= size else b""
    except FileNotFoundError:
        raise ModelError(f"{file} is absent, and the index names it; download the model again") from None
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from None
    shapes, end = _described(file, written)
    if LENGTH_BYTES + length + end > size:
        raise ModelError(
            f"{file} is cut short: {size:,} of {LENGTH_BYTES + length + end:,} bytes; download the model again"
        )
    return shapes


def _described(file: Path, written: bytes) -> tuple[Shapes, int]:
    """The shapes in a header, and the offset where its last tensor ends."""
    try:
        tensors: dict[str, Values] = json.loads(written)
        tensors.pop("__metadata__", None)
        shapes = {name: tuple(map(int, tensor["shape"])) for name, tensor in tensors.items()}
        return shapes, max((int(tensor["data_offsets"][1]) for tensor in tensors.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ModelError(f"{file} is not a safetensors file; download the model again") from None
