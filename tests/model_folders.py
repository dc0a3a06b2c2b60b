"""Model folders as far as a check looks: real headers in front of zeros, and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

ROWS, WIDTH, LAYERS = 8, 4, 2
CONFIG = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 64,
    "vocab_size": ROWS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
}  # fmt: skip
SHAPES = {
    "model.embed_tokens.weight": (ROWS, WIDTH),
    **{f"model.layers.{layer}.mlp.up_proj.weight": (WIDTH, WIDTH) for layer in range(LAYERS)},
}
PARAMETERS = ROWS * WIDTH + LAYERS * WIDTH * WIDTH


def save_tensors(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end := end + 4 * prod(shape)]}
    written = json.dumps(header).encode()
    file.write_bytes(len(written).to_bytes(8, "little") + written + bytes(end))


def save_folder(folder: Path) -> Path:
    """A whole model folder, with a token fewer than the embedding has rows."""
    folder.mkdir()
    save_tensors(folder / "model.safetensors", SHAPES)
    vocabulary = {f"t{index}": index for index in range(ROWS - 2)}
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": ROWS - 2, "content": "<end>"}]}
    for name, values in {"config": CONFIG, "tokenizer": tokenizer, "tokenizer_config": {"eos_token": "<end>"}}.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def change(file: Path, **values: object) -> None:
    """Change keys of a JSON object on disk, or begin one."""
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(before | values))
