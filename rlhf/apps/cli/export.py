"""`rlhf export` copies a checkpoint's model to a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from rlhf.runs.model_card import export_model
from rlhf.trainer.checkpoint import model_folder


def run_export(checkpoint: Path, output: Path) -> int:
    """Copy the exported model folder, with a model card. Raises `UserError` when `output` is not empty."""
    export_model(model_folder(checkpoint), output)
    print(f"{output}: load it with transformers, vLLM, or as model.path of a recipe")
    return 0
