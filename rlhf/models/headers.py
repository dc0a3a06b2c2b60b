"""Read names and shapes of a folder's tensors from the headers of its safetensors files, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from rlhf.errors import ModelError
from rlhf.models.folder import read_json_object

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor shapes by tensor name."""
SAFETENSORS, PICKLES = "model.safetensors", "pytorch_model.bin"


def tensor_shapes(folder: Path) -> Shapes | None:
    """Return the shapes of all tensors that transformers would load from `folder`. None if it has only `.bin` files,
    which cannot be read without torch. Raises `ModelError` for a folder without weights, and for missing or damaged
    files."""
    named = read_json_object(folder / "config.json").get("transformers_weights")
    for name in (named, SAFETENSORS, f"{SAFETENSORS}.index.json", PICKLES, f"{PICKLES}.index.json"):
        if isinstance(name, str) and (folder / name).exists():
            if ".bin" in name:
                return None
            files = _parts(folder / name) if name.endswith(".json") else [folder / name]
            return {tensor: shape for file in files for tensor, shape in _shapes(file).items()}
    raise ModelError(
        f"{folder} has no weights ({SAFETENSORS}, {PICKLES}, or the .index.json of several such files); "
        "model.path must be a whole model folder"
    )


def parameters(shapes: Shapes) -> int:
    """Count the weights; tied weights are stored, and so counted, once."""
    return sum(prod(shape) for shape in shapes.values())


def _parts(index: Path) -> list[Path]:
    files = read_json_object(index).get("weight_map")
    if not isinstance(files, dict) or not files:
        raise ModelError(f"{index} has no weight_map; download the model again")
    return [index.parent / str(name) for name in sorted(set(files.values()))]


def _shapes(file: Path) -> Shapes:
    try:
        with safe_open(file, framework="np") as content:
            return {name: tuple(content.get_slice(name).get_shape()) for name in content.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"{file} is absent, and the index names it; download the model again") from None
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error}") from None
    except SafetensorError as error:
        raise ModelError(f"{file} is not a whole safetensors file ({error}); download the model again") from None
